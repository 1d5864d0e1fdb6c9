#!/usr/bin/env python3
"""Times the embedded model on the CPU in transformers and llama.cpp, for `fovea bench model --peers FILE`.

Usage: needle_cpu.py MODEL_FOLDER --contexts 0,8192,32768 --threads 2 --json OUT
Prints, for each engine and context: prefill seconds of the context and decode tokens a second of one stream. The best of
the dtypes an engine offers counts. Needs torch, transformers, and (optionally) llama-cpp-python and gguf.
"""
import argparse
import json
import os
import statistics
import tempfile
import time

import numpy as np


def prompt_tokens(count, vocab, seed):
    """Random ordinary tokens: speed does not depend on what they say."""
    return np.random.default_rng(seed).integers(16, vocab, size=max(count, 1)).tolist()


def time_transformers(folder, contexts, threads, steps):
    import torch
    from transformers import AutoModelForCausalLM

    torch.set_num_threads(threads)
    rows = []
    for dtype in (torch.float32, torch.bfloat16):
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype).eval()
        vocab = model.config.vocab_size
        for context in contexts:
            ids = torch.tensor([prompt_tokens(context, vocab, 1)])
            with torch.inference_mode():
                best_prefill = float("inf")
                for _ in range(2):
                    start = time.perf_counter()
                    out = model(ids, use_cache=True, logits_to_keep=1)
                    best_prefill = min(best_prefill, time.perf_counter() - start)
                cache, token = out.past_key_values, out.logits[:, -1:].argmax(-1)
                times = []
                for _ in range(steps):
                    start = time.perf_counter()
                    out = model(token, past_key_values=cache, use_cache=True)
                    token = out.logits[:, -1:].argmax(-1)
                    times.append(time.perf_counter() - start)
            rows.append({"peer": "transformers", "dtype": str(dtype).split(".")[1], "context": context,
                         "prefill_s": best_prefill, "decode_tokens_per_s": 1.0 / statistics.median(times)})
    return rows


def write_gguf(folder, path, dtype):
    """Converts a Llama-shaped Hugging Face folder to GGUF: llama.cpp rotates pairs, so rows of Q and K are permuted."""
    import gguf
    import torch
    from safetensors.torch import load_file

    config = json.load(open(os.path.join(folder, "config.json")))
    tokenizer = json.load(open(os.path.join(folder, "tokenizer.json")))
    weights = load_file(os.path.join(folder, "model.safetensors"))
    heads, kv_heads, dim = config["num_attention_heads"], config["num_key_value_heads"], config["head_dim"]
    rope = config.get("rope_theta") or config["rope_parameters"]["rope_theta"]

    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(heads)
    writer.add_head_count_kv(kv_heads)
    writer.add_key_length(dim)
    writer.add_value_length(dim)
    writer.add_rope_dimension_count(dim)
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(rope)
    writer.add_vocab_size(config["vocab_size"])
    vocab = tokenizer["model"]["vocab"]
    tokens = [t for t, _ in sorted(vocab.items(), key=lambda item: item[1])]
    special = {t["id"] for t in tokenizer["added_tokens"]}
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list(tokens)
    writer.add_token_types([3 if i in special else 1 for i in range(len(tokens))])
    writer.add_token_merges([m if isinstance(m, str) else " ".join(m) for m in tokenizer["model"]["merges"]])

    def permute(weight, count):
        return weight.reshape(count, 2, weight.shape[0] // count // 2, weight.shape[1]).swapaxes(1, 2).reshape(weight.shape)

    def add(name, tensor):
        if tensor.ndim == 1 or dtype == "f32":
            writer.add_tensor(name, tensor.float().numpy())
        elif dtype == "f16":
            writer.add_tensor(name, tensor.half().numpy())
        else:
            raw = tensor.to(torch.bfloat16).contiguous().view(torch.uint8).numpy()
            writer.add_tensor(name, raw, raw_dtype=gguf.GGMLQuantizationType.BF16)

    add("token_embd.weight", weights["model.embed_tokens.weight"])
    add("output_norm.weight", weights["model.norm.weight"])
    names = {"self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
             "self_attn.o_proj": "attn_output", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up",
             "mlp.down_proj": "ffn_down", "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm"}
    for layer in range(config["num_hidden_layers"]):
        for theirs, ours in names.items():
            tensor = weights[f"model.layers.{layer}.{theirs}.weight"]
            if ours in ("attn_q", "attn_k"):
                tensor = permute(tensor, heads if ours == "attn_q" else kv_heads)
            add(f"blk.{layer}.{ours}.weight", tensor)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def time_llama_cpp(folder, contexts, threads, steps):
    from llama_cpp import Llama

    rows = []
    vocab = json.load(open(os.path.join(folder, "config.json")))["vocab_size"]
    for dtype in ("f32", "f16", "bf16"):
        with tempfile.TemporaryDirectory() as temp:
            path = os.path.join(temp, "model.gguf")
            write_gguf(folder, path, dtype)
            for context in contexts:
                model = Llama(path, n_ctx=max(context, 1) + steps + 8, n_batch=512, n_threads=threads,
                              n_threads_batch=threads, verbose=False, flash_attn=True)
                ids = prompt_tokens(context, vocab, 1)
                start = time.perf_counter()
                model.eval(ids)
                prefill = time.perf_counter() - start
                token, times = 20, []
                for _ in range(steps):
                    start = time.perf_counter()
                    model.eval([token])
                    token = int(np.argmax(np.ctypeslib.as_array(model._ctx.get_logits(), shape=(vocab,))))
                    times.append(time.perf_counter() - start)
                rows.append({"peer": "llama.cpp", "dtype": dtype, "context": context, "prefill_s": prefill,
                             "decode_tokens_per_s": 1.0 / statistics.median(times)})
                del model
    return rows


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("--contexts", default="0,8192,32768")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--steps", type=int, default=48)
    parser.add_argument("--json", default="-")
    args = parser.parse_args()
    contexts = [int(c) for c in args.contexts.split(",")]
    rows = []
    for name, run in (("transformers", time_transformers), ("llama-cpp-python", time_llama_cpp)):
        try:
            rows += run(args.model, contexts, args.threads, args.steps)
        except ImportError as error:
            print(f"{name} is not installed here ({error}); left out", flush=True)
    text = json.dumps({"rows": rows}, indent=1)
    if args.json == "-":
        print(text)
    else:
        with open(args.json, "w") as out:
            out.write(text + "\n")


if __name__ == "__main__":
    main()
