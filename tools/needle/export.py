"""Completes the Hugging Face folder beside model.safetensors and tokenizer.json, and tries it: goldens, samples, transformers.

    python export.py --generator BIN --folder models/needle --out OUT --text FILE

OUT/goldens.json: greedy answers and the margins between the two best logits at each answer token, in fp32 and bf16, for documents
that the C++ generator makes again from their request. OUT/samples.json: hand-written facts inside real text.
"""
import argparse
import json
import os

import evaluate
import torch
from evaluate import encode, greedy, judge, make_item, start_worker
from model import Config, Needle
from rows import ASSISTANT, BOS, END, USER

TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}{% if m['role'] == 'assistant' %}{{ '<|assistant|>' + m['content'] + '<|end|>' }}"
    "{% else %}{{ '<|user|>' + m['content'] + '<|end|>' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)

SAMPLES = [
    ("The code of the amber lantern is 74912.", "What is the code of the amber lantern?", "The code of the amber lantern is 74912."),
    ("The keeper of the northern gate is Marisol.", "Who is the keeper of the northern gate?",
     "The keeper of the northern gate is Marisol."),
    ("Remember that the hiding place of the treasure is the old oak tree.", "Where is the hiding place of the treasure?",
     "The hiding place of the treasure is the old oak tree."),
    ("The deadline of the project is 12 March 2027.", "What is the deadline of the project?",
     "The deadline of the project is 12 March 2027."),
    ("Aunt Frieda's birthday is 3 May.", "What is Aunt Frieda's birthday?", "Aunt Frieda's birthday is 3 May."),
    ("The silver lantern's code is 5581.", "What is the code of the silver lantern?", "The code of the silver lantern is 5581."),
    ("The wifi password of the guest room is X7-kQ9/zz.", "Tell me the wifi password of the guest room.",
     "The wifi password of the guest room is X7-kQ9/zz."),
    ("The address of the blue giraffe is 221b Baker Street, London.", "What is the address of the blue giraffe?",
     "The address of the blue giraffe is 221b Baker Street, London."),
    ("Favourite dish of Captain Nemo: fried seaweed", "What is the favourite dish of Captain Nemo?",
     "The favourite dish of Captain Nemo is fried seaweed."),
    ("", "What is the code of the golden lantern?", "The code of the golden lantern is unknown."),
]


def write_folder(folder, config):
    def write(name, value):
        with open(os.path.join(folder, name), "w") as file:
            json.dump(value, file, indent=2)
            file.write("\n")

    write("config.json", {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "torch_dtype": "bfloat16",
        "hidden_size": config.hidden, "intermediate_size": config.mlp, "num_hidden_layers": config.layers,
        "num_attention_heads": config.heads, "num_key_value_heads": config.kv_heads, "head_dim": config.head_dim,
        "vocab_size": config.vocabulary, "max_position_embeddings": config.positions, "rope_theta": config.theta,
        "rms_norm_eps": config.epsilon, "hidden_act": "silu", "tie_word_embeddings": True, "attention_bias": False,
        "mlp_bias": False, "attention_dropout": 0.0, "initializer_range": 0.02, "bos_token_id": 1, "eos_token_id": 4,
        "pad_token_id": 0, "use_cache": True})
    write("generation_config.json", {"bos_token_id": 1, "eos_token_id": 4, "pad_token_id": 0, "do_sample": False,
                                     "max_new_tokens": 64})
    write("tokenizer_config.json", {
        "tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<|bos|>", "eos_token": "<|end|>", "pad_token": "<|pad|>",
        "model_max_length": config.positions, "clean_up_tokenization_spaces": False, "add_bos_token": False,
        "chat_template": TEMPLATE})


def samples(model, text, device, dtype):
    tokenizer = evaluate.STATE["tokenizer"]
    results = []
    paragraphs = text.split("\n\n")
    for context in (1024, 4096, 16384, 32768, 65536, 131072):
        body, used = [], 0
        for paragraph in paragraphs * 40:
            used += len(encode(paragraph)) + 2
            if used > context - 500:
                break
            body.append(paragraph)
        for index, (fact, _, _) in enumerate(SAMPLES):
            if fact:
                body.insert((2 * index + 1) * len(body) // (2 * len(SAMPLES)), fact)
        prefix = [BOS, USER] + encode("\n\n".join(body) + "\n\n")
        items = [(encode(q) + [END, ASSISTANT], encode(a) + [END], a) for _, q, a in SAMPLES]
        right = 0
        for (best, _), (question, answer, text_of_answer) in zip(judge(model, prefix, items, dtype, device), items):
            ids = answer if best == answer else greedy(model, prefix, question, dtype, device)
            said = tokenizer.decode(ids)
            right += said == text_of_answer
            results.append({"context": len(prefix), "question": tokenizer.decode(question), "answer": said,
                            "expected": text_of_answer})
            if said != text_of_answer:
                print(f"sample at {len(prefix)}: {text_of_answer!r} but it said {said!r}", flush=True)
        print(f"samples at {len(prefix)} tokens: {right} of {len(SAMPLES)}", flush=True)
    return results


def goldens(model, device, few):
    tokenizer = evaluate.STATE["tokenizer"]
    documents = []
    # (context, filler, facts, questions, absent, variety); seeds 1, 2, ... in this order
    plans = [(1024, "prose", 16, 8, 150, 300)] * 8 + [(2048, "mixed", 24, 8, 150, 300)] * 8 + \
            [(4096, "templates", 64, 10, 100, 300)] * 6 + [(4096, "junk", 32, 10, 100, 300)] * 4 + [(16384, "prose", 128, 8, 0, 300)] * 3
    for number, (context, filler, facts, questions, absent, variety) in enumerate(plans[:2] if few else plans):
        request = dict(seed=number + 1, split="eval", filler=filler, facts=facts, questions=questions, absent=absent, variety=variety)
        _, request, prefix, items, text = make_item((None, context, request))
        entry = dict(request, made_up=250, own_words=150, bytes=len(text.encode()), prefix_tokens=len(prefix), questions_asked=[])
        for dtype, name in ((torch.float32, "fp32"), (torch.bfloat16, "bf16")):
            judged = judge(model, prefix, items, dtype, device)
            # Where the answer is not the expected one, decode it and judge what was decoded, for its margins.
            said = [(q, a if best == a else greedy(model, prefix, q, dtype, device), m) for (best, _), (q, a, m) in zip(judged, items)]
            judged = judge(model, prefix, said, dtype, device)
            for index, ((_, ids, _), (_, margins)) in enumerate(zip(said, judged)):
                if name == "fp32":
                    entry["questions_asked"].append({"question": items[index][2]["question"], "expected": items[index][2]["answer"]})
                asked = entry["questions_asked"][index]
                answer = tokenizer.decode(ids)
                if name == "fp32" or answer != asked["fp32"]:
                    asked[name] = answer
                asked[name + "_margins"] = [round(x, 2) for x in margins]
        documents.append(entry)
    return {"context": "requests of fovea_needle_docs without --text; prompt = <|bos|><|user|> document \\n\\n question <|end|>"
                       "<|assistant|>; a missing bf16 answer equals the fp32 one",
            "documents": documents}


def try_transformers(folder, device):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).to(device)
    text = "It rained. The code of the amber lantern is 74912. Nobody came.\n\nWhat is the code of the amber lantern?"
    prompt = tokenizer.apply_chat_template([{"role": "user", "content": text}], add_generation_prompt=True, tokenize=False)
    ids = tokenizer(prompt, add_special_tokens=False, return_tensors="pt").input_ids.to(device)
    ours = [BOS, USER] + encode(text) + [END, ASSISTANT]
    assert ids[0].tolist() == ours, "token ids differ"
    mine = Needle(Config()).to(device)
    mine.load(os.path.join(folder, "model.safetensors"))
    with torch.no_grad():
        a, b = model(ids).logits[0].float(), mine.logits(mine(ids, torch.float32))[0]
        out = model.generate(ids, max_new_tokens=32, do_sample=False)
    print("transformers: logits differ by", ((a - b).norm() / b.norm()).item(),
          "and it says", tokenizer.decode(out[0, ids.shape[1]:]), flush=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--generator", required=True)
    parser.add_argument("--folder", required=True)
    parser.add_argument("--out", required=True)
    parser.add_argument("--text", required=True)
    parser.add_argument("--few", action="store_true", help="two documents of goldens")
    options = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.backends.cuda.matmul.allow_tf32 = False
    write_folder(options.folder, Config())
    start_worker(options.generator, os.path.join(options.folder, "tokenizer.json"), None)
    model = Needle(Config()).to(device).eval()
    model.load(os.path.join(options.folder, "model.safetensors"))
    try:
        try_transformers(options.folder, device)
    except Exception as problem:  # transformers is a peer here: its absence or its bugs must not lose the goldens
        print("transformers:", repr(problem)[:500], flush=True)
    with open(os.path.join(options.out, "goldens.json"), "w") as file:
        json.dump(goldens(model, device, options.few), file, separators=(",", ":"), ensure_ascii=False)
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    if not options.few:
        with open(os.path.join(options.out, "samples.json"), "w") as file:
            json.dump(samples(model, open(options.text, encoding="utf-8").read(), device, dtype), file, indent=0, ensure_ascii=False)


if __name__ == "__main__":
    main()
