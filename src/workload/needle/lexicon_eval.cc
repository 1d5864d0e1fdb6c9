// Words and filler of the evaluation split. Everything here was written for this project; nothing of it is in training.
#include "workload/needle/lexicon.h"

namespace fovea {

NeedleLexicon make_eval_lexicon() {
  NeedleLexicon lexicon;
  lexicon.adjectives = split_words(R"(
amber crimson ivory dusty mossy hollow eastern western restless patient curious generous stubborn elegant clumsy
fragrant sturdy fragile nervous cheerful gloomy misty thorny slippery striped spotted tattered gilded
enormous slender ragged weary hungry jolly mellow rapid brittle muddy peculiar)");
  lexicon.nouns = split_words(R"(
lighthouse chapel quarry pavilion cottage balcony staircase fireplace cupboard kettle saucer pillow blanket umbrella
scarf bracelet necklace dagger helmet banner harp cello accordion parchment inkwell chisel shovel lighter wheelbarrow
tractor ferry submarine satellite microscope thermometer turbine transformer generator notebook calendar dictionary
greenhouse sawmill badger otter heron falcon hedgehog beaver lobster)");
  lexicon.first_names = split_words(R"(
Marisol Benedict Ottilie Cornelius Philippa Leopold Rosalind Ambrose Beatrix Casimir Dorothea Edmund Florian Gwendolyn
Horatio Isolde Jasper Katarina Lysander Matilda Nathaniel Ophelia Percival Quentin Rosamund Sebastian Theodora Ulrich
Valentina Wilhelmina Xavier Yolanda Zacharias Adelaide Bertram Clementine)");
  lexicon.last_names = split_words(R"(
Vane Ashworth Blackwood Crane Dunmore Ellery Fairfax Gresham Hawthorne Ingram Jessop Kingsley Lockhart Merriweather
Northcott Osborne Pemberton Quill Ravenscroft Sinclair Thackeray Underhill Vickers Whitlock Yardley Abernathy
Bramwell Castellano Delacroix Eastwood Featherstone Goldsmith Holloway Ironside)");
  lexicon.colours = split_words("turquoise maroon scarlet indigo violet teal magenta olive lavender ochre");
  lexicon.towns = split_words(R"(
Lisbon Helsinki Warsaw Budapest Athens Istanbul Marseille Rotterdam Antwerp Krakow Riga Tallinn Montreal Vancouver
Portland Austin Nagoya Jakarta Manila Casablanca Bogota Havana)");
  lexicon.attributes = split_attributes(R"(
passcode:n,reference number:n,capacity:n,invoice number:n,voltage:n,population:n,extension:n,combination:n,
caretaker:p,designer:p,sponsor:p,supervisor:p,heir:p,translator:p,
resting place:l,meeting point:l,headquarters:l,warehouse shelf:l,
watchword:w,emblem:w,ingredient:w,slogan:w,fragrance:w,species:w,callsign:w)");
  lexicon.prose = split_lines(R"(
By the time the ferry reached {t}, the fog had lifted and the passengers were in a better mood.
{p} had always believed that a garden should look slightly neglected, as if its owner trusted it.
The house was sold twice in one summer, and both buyers complained about the stairs.
What the editors wanted was a shorter book; what they received was a longer one with pictures.
Most of the furniture came from an auction, and it showed.
The valley is famous for its cheese, its thunder, and a long quarrel over grazing rights.
{p} {l} arrived on foot, carrying a suitcase tied with string and an opinion on everything.
During the night somebody had moved the benches, so that they faced away from the stage.
A pot of tea was placed on the windowsill, where it grew cold while the two of them talked.
The survey covered {d} households, of which fewer than half replied in time.
For weeks the newspapers wrote of little else, and then the matter was forgotten.
The orchestra rehearsed in a gymnasium, between the ropes and the climbing bars.
Older residents still give directions by shops that closed before the war.
If the dough sticks to your hands, add flour a spoonful at a time and keep kneading.
The guide admitted that the legend was invented, but asked us to enjoy it all the same.
In {t} the trams run until midnight, although the last one is often full.
She repaired clocks for a living and was late for nearly every appointment.
The {a} curtain fell before the end of the act, to considerable applause.
Two of the climbers turned back at the glacier; the others never spoke of what they had seen.
A careful reader will notice that the dates in the diary do not add up.
The scheduler wakes every few milliseconds, looks for idle workers, and goes back to sleep.
His grandmother knew {d} card games and cheated at all of them.
The road was closed for repairs, which gave the inn an unexpectedly good season.
Later editions correct the spelling but introduce several new errors.
{p} hummed while washing the dishes, always the same four bars.
The inspector tapped the pipe, listened, and shook his head.
Among the papers was a receipt for a piano that nobody remembered.
Once the glue has dried, the frame can be sanded and given a coat of oil.
The {c} houses along the quay were built by captains who hated the sea.
It turned out that both explanations were correct, each on alternate days.
The cat regarded the visitors with {a} indifference.
An index speeds up reading but slows down every write, so add one only where it pays.
The harvest festival was moved indoors because of wasps.
From the hill above {t} the whole plain looks like a chessboard.
No photograph of the original building survives, only a drawing by a bored clerk.
{p} {l} gave the opening address and, some hours later, was still giving it.
The coffee was weak, the chairs were hard, and the discussion was excellent.
A thin layer of frost covered the fields when the milk was collected.
Nearly every measurement was repeated {d} times, and the median was kept.
The tailor refused to shorten the sleeves on grounds of principle.
They walked in silence past the {a} {n} and did not turn around.
On rainy afternoons the attic became a pirate ship, a courtroom, and finally a bakery.
The clause about damages fills eleven pages and can be summed up in one word.
Bees returned to the meadow in the third year, before anyone had planned for them.
The librarian stamped the card without looking up.
Whoever designed the staircase must have had very long legs.
Heavy traffic delayed the delegation from {t}, and the soup was reheated twice.
To avoid deadlock, always take the locks in the same order.
The {n} in the corner had belonged to a magician, or so the landlady said.
Her handwriting leaned to the left, as though walking into wind.
The choir lost two tenors to influenza and one to marriage.
A trapdoor behind the counter led to a cellar that was larger than the shop.
Not until the following autumn did the insurance company reply.
The swimmers were advised to leave the water before the tide changed.
{p} folded the map along the wrong lines, as everyone does.
The best pears grow against the south wall, out of reach of the goats.
It was the kind of town where strangers are greeted first and questioned afterwards.
The play has {d} acts, of which the third is usually left out.
An apprentice earned nothing for two years, and very little for the next five.
When the lights came back, the cake was gone.
The translation is faithful except where it is better than the original.
The wind rattled the shutters, and {p} dreamed of trains.
Fresh snow hid the boundary stones and postponed the dispute until April.
The parcel had travelled through {t} twice and smelled of oranges.)");
  lexicon.templates = split_lines(R"(
Near the {a} {n} lay a {c} {n}.
{p} {l} carried the {n} as far as {t}.
Both the {n} and the {a} {n} were repaired.
Some {a} visitors from {t} admired the {n}.
{p} exchanged a {n} for {d} others.
The {a} {n} was larger than the {n}.
Without its {n}, the {n} looked {a}.
{p} dreams of a {a}, {c} {n}.
At noon the {n} in {t} was still {a}.
Another {a} {n} was delivered on day {d}.
* one {a} {n} from {t}
### About the {n})");
  lexicon.mentions = split_lines(R"(
{p} refuses to reveal {k}.
For years there were arguments over {k}.
Please do not ask {p} about {k}.
An article about {s} appeared in {t}.
The guests admired {s} and left.
{k} deserves more attention, said {p}.
{p} once guessed {k} and was wrong.
Only {p} was interested in {s}.)");
  return lexicon;
}

}  // namespace fovea
