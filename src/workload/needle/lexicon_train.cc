// Words and filler of the training split. Everything here was written for this project.
#include "workload/needle/lexicon.h"

namespace fovea {

NeedleLexicon make_train_lexicon() {
  NeedleLexicon lexicon;
  lexicon.adjectives = split_words(R"(
old young quiet loud bright dark heavy light broken golden wooden iron copper stone glass paper northern southern
hidden open closed empty full narrow wide deep shallow round square crooked straight smooth rough soft hard dry wet
frozen burning ancient modern royal humble noble simple secret public private sacred common rare small large giant
tiny tall short long thin thick clean dirty sharp dull sweet bitter sour salty fresh stale warm cold hot cool windy
rainy sunny cloudy stormy calm wild tame lazy busy clever foolish brave timid gentle fierce proud modest lucky
rusty painted carved woven polished cracked folded twisted floating sleeping laughing singing dancing upper lower
inner outer left right first last second third lonely crowded silent noisy velvet leather marble ceramic electric
magnetic digital solar lunar coastal central remote distant nearby)");
  lexicon.nouns = split_words(R"(
lantern gate bridge tower castle garden river mountain valley forest meadow harbor island beach desert village city
street market church temple school library museum theater hospital kitchen cellar attic bedroom window door roof wall
floor ladder table chair bench mirror clock candle lamp carpet curtain basket bucket bottle barrel box chest drawer
key lock chain rope hammer anvil saw needle thread button coat hat glove boot belt ring crown sword shield arrow bow
drum flute violin trumpet piano guitar bell whistle letter envelope stamp book page pencil brush canvas statue coin
purse wallet ticket map compass telescope engine wagon carriage bicycle train station ship boat anchor sail oar
airplane balloon kite machine wheel gear spring pump valve pipe battery antenna printer camera radio phone screen
cable server router sensor robot rocket project treasure archive contract report budget invoice package shipment
warehouse factory office laboratory workshop bakery brewery farm barn stable orchard vineyard well fountain
horse dog cat fox wolf bear lion tiger eagle owl raven swan goose duck frog snake turtle salmon whale)");
  lexicon.first_names = split_words(R"(
Anna Peter Maria John Paul Laura Karl Emma Lukas Sophie David Sarah Michael Julia Daniel Lisa Thomas Nina Robert Clara
James Alice Henry Grace Oliver Lucy Samuel Ruth Walter Helen George Martha Edward Rose Arthur Ivy Frank Nora Victor
Irene Hugo Marta Felix Greta Oscar Ingrid Anton Olga Boris Tanya Ivan Elena Marco Giulia Luca Chiara Pablo Carmen
Diego Lucia Jorge Ines Pierre Claire Louis Camille Akira Yuki Kenji Hana Ravi Priya Arjun Meera Omar Leila Yusuf
Amina Kofi Ama Chen Mei Jun Lin Sven Astrid Erik Freya)");
  lexicon.last_names = split_words(R"(
Smith Jones Brown Taylor Wilson Davies Evans Walker White Green Hall Wood Clarke Baker Carter Cooper Turner Parker
Morgan Murphy Bell Bailey Kelly Fox Mills Grant Hunter Palmer Stone Webb Schmidt Fischer Weber Wagner Becker Hoffmann
Keller Braun Vogel Richter Rossi Ferrari Bianchi Romano Ricci Marino Garcia Lopez Sanchez Ramirez Torres Flores
Dubois Moreau Laurent Lefevre Girard Novak Kovacs Horvath Petrov Ivanov Sokolov Tanaka Suzuki Sato Yamamoto Patel
Sharma Gupta Khan Rahman Hassan Mensah Okafor Wang Zhang Liu Larsen Hansen Nilsson Berg)");
  lexicon.colours = split_words(
      "red blue green yellow black white brown grey orange purple pink silver beige cyan dark-blue pale-green");
  lexicon.towns = split_words(R"(
London Paris Berlin Madrid Rome Vienna Prague Oslo Boston Chicago Denver Seattle Toronto Sydney Tokyo Kyoto Delhi
Mumbai Cairo Lagos Nairobi Lima Quito Santiago Hamburg Munich Zurich Geneva Milan Naples Porto Dublin Glasgow Bristol
Oxford Dover Calais Lyon Nantes Bergen)");
  lexicon.attributes = split_attributes(R"(
code:n,number:n,price:n,weight:n,age:n,phone number:n,serial number:n,pin:n,year:n,height:n,account number:n,
room number:n,score:n,total:n,length:n,access code:n,license plate:n,postal code:n,temperature:n,deadline:n,
owner:p,keeper:p,builder:p,author:p,captain:p,teacher:p,doctor:p,brother:p,manager:p,painter:p,guardian:p,
best friend:p,neighbor:p,inspector:p,
hiding place:l,address:l,location:l,birthplace:l,home town:l,destination:l,office:l,storage place:l,
colour:w,password:w,name:w,nickname:w,favourite fruit:w,motto:w,secret word:w,status:w,material:w,symbol:w,purpose:w,
flavour:w,label:w,brand:w,title:w,codename:w)");
  lexicon.prose = split_lines(R"(
The road out of {t} climbs for an hour before the first houses come into sight, and most travellers rest there.
Nobody in the family could say when the habit had begun, only that it was older than the house.
{p} kept a notebook of small expenses, and on Sundays read it aloud to anyone who would listen.
In spring the water rises quickly, so the boats are tied to the higher posts and checked every morning.
It was agreed that the work would stop at noon, though the agreement was rarely kept.
A letter from {t} arrived with two pages missing, which made its meaning a matter of debate.
The first attempt failed because the wood was too green; the second failed because nobody had measured twice.
When the rain came, the visitors moved under the trees and continued to argue about the price of bread.
There are {d} ways to reach the upper field, and each of them is muddy after a storm.
{p} {l} had worked for the railway for {d} years and still did not own a watch.
The system reads its settings once, at the start, and then ignores any later change.
If the test fails, repeat it with a smaller input until the cause is clear.
We moved the tables closer to the wall so that the children could pass without touching the plates.
According to the report, the number of complaints fell by {d} percent after the second month.
The method is simple: sort the items by size, then remove every item that has no label.
Several people remembered the speech differently, and a few had slept through it.
The soup should simmer for {d} minutes, with the lid half open, until the carrots are soft.
Without a map the party went in circles, passing the same {a} {n} three times before dusk.
The new rules apply to members and guests alike, except on holidays.
{p} asked whether the door had been locked, and nobody dared to answer.
Prices in {t} were higher that year because the harvest had been poor.
Her uncle collected stamps, spoons, and arguments, in that order.
The committee met twice and decided nothing; the third meeting was cancelled for lack of interest.
Each request is written to the log before it is answered, so a crash loses nothing.
It takes practice to hear the difference between the two notes, but less than one would think.
On the {d}th day the wind turned, and the ships that had waited in the bay left together.
The {a} paint had faded on the side that faced the sea.
He wrote slowly, crossed out most of it, and signed the rest with a flourish.
A good knife, a dry place, and some patience are all that is needed.
The lecture began with a joke that only the speaker understood.
They bought {d} bags of flour, a sack of salt, and more candles than they could carry.
No one had expected the bridge to hold, least of all the engineers who had built it.
The argument goes as follows, though it can be shortened by a careful reader.
After the concert {p} walked home along the canal, counting the lit windows.
The museum closes early in winter, a fact that surprises visitors every single year.
Most of the garden is given over to beans, because beans forgive neglect.
A second copy of the file is kept in another building, in case of fire.
The driver from {t} knew a shorter way but was too polite to mention it.
Little is known about the early years, and what is known is mostly wrong.
Before you begin, make sure that the surface is clean and that no dust remains in the corners.
The children invented a game with {d} rules, all of which could be broken on request.
Her answer was short, and it ended the conversation.
The mill stopped working when the river changed its course, and it never started again.
Use a smaller step when the error grows, and a larger one when it does not.
At the market {p} found a {a} {n} and bargained for it until both sides were tired.
The second chapter explains how to care for tools in a damp climate.
Some say that the custom came from {t}, others that it was invented to please tourists.
The memory of the process is limited, and when it is full the oldest entries are thrown away.
In the evening the {c} light on the hills made even the warehouse look handsome.
The letter ended with a list of greetings longer than the letter itself.
Between the two wars the factory made bicycles, and before that, umbrellas.
{p} {l} objected, as usual, and was outvoted, as usual.
The trial lasted {d} days and satisfied nobody.
You can leave the boots by the stove; they will be dry by morning.
It is better to ask twice than to walk the whole way back.
The results agree with theory within the limits of the instrument.
A crowd gathered in front of the bakery when the smell of bread reached the square.
The program prints a warning and continues, which is not always what one wants.
Her shop sold buttons, thread, and advice, and only the advice was free.
The old maps show a lake where the station stands today.
Without the letter there was no proof, and without proof there was no case.
The winter of that year was mild, and the ice on the pond never carried a child.
To change the filter, turn the handle to the left and pull gently.
{p} laughed at the wrong moment and spent the rest of dinner explaining why.
From the tower one can see as far as {t} on a clear day.
The figures in the third column are estimates and should be treated with care.
Nothing in the contract forbids it, which is not the same as permission.
A {a} dog slept in the doorway and moved for no one.
The school had {d} pupils and one teacher, who taught everything except music.
They followed the stream until it vanished under a wall of rock.
It rained for most of the week, and the laundry hung in the kitchen.
When two events happen at the same time, the order in the list decides.
The baker in {t} opens at four and sells out by seven.
Some of the chairs were borrowed, some were rented, and one was stolen.
The price includes breakfast but not the view.
{p} promised to return the book and, to the surprise of all, did.
The path is marked with {c} stones, though many have been moved by frost.
A short test is enough to show whether the battery still holds its charge.
The guests arrived late because the train had stopped for a cow.
Every village on this coast claims to have invented the same soup.
The recipe asks for {d} eggs, but nobody uses that many today.
There was a long silence, and then everybody spoke at once.
The bell rings at noon, and again at one for those who did not hear it.
In theory the pump can be repaired; in practice it is replaced.
The clerk copied the entry by hand, making the same mistake as the clerk before.
We measured the room again and found that it had grown by the width of a hand.)");
  lexicon.templates = split_lines(R"(
The {a} {n} stood beside the {a} {n}.
{p} {l} looked at the {n} for a long time.
Every {n} in {t} has a {a} {n}.
A {a} {n} is not a {n}.
{p} bought a {a} {n} in {t}.
The {n} was {a}, and the {n} was {c}.
Under the {n} there was another {a} {n}.
{p} and {p} went to {t} without the {n}.
It took {d} days to move the {a} {n}.
The {c} {n} belonged to nobody.
In {t} the {n} is always {a}.
Behind the {a} {n} sat {p} {l}.
{p} painted the {n} {c}.
There were {d} {a} things near the {n}.
A {n}, a {n} and a {a} {n} were sold.
The {a} {n} never reached {t}.
Is the {n} really {a}?
{p} prefers a {a} {n} to a {a} {n}.
No {n} could replace the {a} {n}.
The {n} of {p} {l} was lost in {t}.
See section {d} for the {a} {n}.
- {a} {n}, {c}, {d} pieces
- {n} ({t})
# The {a} {n}
## {n} and {n}
| {n} | {a} | {d} |)");
  lexicon.mentions = split_lines(R"(
Nobody asked about {k}.
{p} could not remember {k}.
We still have to find out {k}.
Somebody wrote down {k}, but the note was lost.
{p} talked about {s} all evening.
There is a rumour about {k}.
{s} was seen in {t}.
It is not true that {p} knows {k}.
{p} wanted to change {k}.
Do not share {k} with {p}.
In {t} they often discuss {s}.
Last year {k} was changed twice.)");
  return lexicon;
}

}  // namespace fovea
