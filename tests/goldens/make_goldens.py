#!/usr/bin/env python3
"""Makes the golden models of tests/goldens/models: tiny random models of every family, and their logits by transformers.

Needs PyTorch and transformers (any recent version; CPU is enough). Run by `make goldens`; the C++ test
src/engine/model/model_golden_test.cc reads what it writes. Each folder holds a Hugging Face model (config.json as the
families publish it, weights), the same configuration as transformers saves it (config.saved.json), and
golden.safetensors:

  lengths            i32 [N]            tokens of each sequence
  tokens             i32 [sum]          the sequences one after another
  logits_fp32        f32 [sum, V]       computed in fp32 on the stored weights
  logits_bf16        f32 [sum, V]       computed in bf16, widened
  decode_tokens      i32 [N, D]         greedy continuation of each sequence (fp32, with KV cache)
  decode_logits_fp32 f32 [N, D, V]      logits after the prompt and after each of the first D - 1 decoded tokens
"""

import argparse
import json
import pathlib

import torch
import transformers
from safetensors.torch import save_file

VOCAB = 128
LENGTHS = [40, 1, 17, 80]
# LongRoPE's transformers choose by the length at hand, Fovea by the context that is served: all lengths on one side here.
LENGTHS_OF = {"phi3_longrope": [40, 24, 17, 80]}
DECODE_STEPS = 6
STORE = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}


def base(model_type, arch, **over):
    config = {
        "architectures": [arch], "model_type": model_type, "torch_dtype": "bfloat16", "hidden_size": 64,
        "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
        "vocab_size": VOCAB, "max_position_embeddings": 128, "rope_theta": 10000.0, "rms_norm_eps": 1e-05,
        "hidden_act": "silu", "tie_word_embeddings": False, "bos_token_id": 1, "eos_token_id": 2,
    }
    config.update(over)
    return config


def llama(**over):
    return base("llama", "LlamaForCausalLM", head_dim=32, **over)


def phi_longrope(original, **over):
    pairs = int(32 * over.get("partial_rotary_factor", 1.0)) // 2
    return base("phi3", "Phi3ForCausalLM", num_attention_heads=2, num_key_value_heads=1, sliding_window=None,
                original_max_position_embeddings=original, attention_bias=False, pad_token_id=0, rope_scaling={
                    "type": "longrope", "short_factor": [1.0 + 0.05 * i for i in range(pairs)],
                    "long_factor": [1.5 + 0.5 * i for i in range(pairs)]}, **over)


# name -> (config.json, number of shards). head_dim is left out where the family's published files leave it out.
CASES = {
    "llama2": (base("llama", "LlamaForCausalLM", torch_dtype="float32", num_attention_heads=2, num_key_value_heads=2,
                    max_position_embeddings=4096), 1),
    "llama2_f16": (llama(torch_dtype="float16"), 1),
    "llama31": (llama(rope_theta=500000.0, eos_token_id=[2, 3, 5], max_position_embeddings=256, rope_scaling={
        "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 32}), 1),
    "llama32_tied": (llama(tie_word_embeddings=True, rope_scaling={
        "rope_type": "llama3", "factor": 32.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64}), 1),
    "llama_linear": (llama(rope_scaling={"type": "linear", "factor": 4.0}), 1),
    "llama_yarn": (llama(rope_scaling={"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}), 1),
    "llama_bias": (llama(attention_bias=True, mlp_bias=True), 1),
    "llama_sharded": (llama(num_hidden_layers=3), 3),
    "mistral": (base("mistral", "MistralForCausalLM", sliding_window=16, head_dim=32), 1),
    "mistral_full": (base("mistral", "MistralForCausalLM", sliding_window=None, num_attention_heads=2,
                          num_key_value_heads=1, rope_theta=1000000.0), 1),
    "qwen2": (base("qwen2", "Qwen2ForCausalLM", num_attention_heads=2, num_key_value_heads=1, sliding_window=64,
                   max_window_layers=2, use_sliding_window=False, rms_norm_eps=1e-06, tie_word_embeddings=True,
                   rope_theta=1000000.0), 1),
    "qwen2_window": (base("qwen2", "Qwen2ForCausalLM", num_attention_heads=2, num_key_value_heads=1, sliding_window=16,
                          max_window_layers=1, use_sliding_window=True, num_hidden_layers=3, rms_norm_eps=1e-06), 1),
    "qwen2_yarn": (base("qwen2", "Qwen2ForCausalLM", num_attention_heads=2, num_key_value_heads=1,
                        use_sliding_window=False, rope_scaling={
                            "type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}), 1),
    "qwen3": (base("qwen3", "Qwen3ForCausalLM", head_dim=32, attention_bias=False, use_sliding_window=False,
                   sliding_window=None, max_window_layers=2, rms_norm_eps=1e-06, rope_theta=1000000.0,
                   tie_word_embeddings=True), 1),
    "gemma2": (base("gemma2", "Gemma2ForCausalLM", head_dim=32, hidden_act="gelu_pytorch_tanh",
                    hidden_activation="gelu_pytorch_tanh", attn_logit_softcapping=5.0, final_logit_softcapping=8.0,
                    query_pre_attn_scalar=48, sliding_window=16, num_hidden_layers=3, rms_norm_eps=1e-06,
                    attention_bias=False, tie_word_embeddings=True, cache_implementation="hybrid",
                    hidden_size=56), 1),
    "gemma3": (base("gemma3_text", "Gemma3ForCausalLM", head_dim=32, hidden_activation="gelu_pytorch_tanh",
                    attn_logit_softcapping=None, final_logit_softcapping=None, query_pre_attn_scalar=48,
                    sliding_window=16, sliding_window_pattern=3, num_hidden_layers=4, rms_norm_eps=1e-06,
                    rope_theta=1000000.0, rope_local_base_freq=10000.0, rope_scaling={
                        "rope_type": "linear", "factor": 8.0},
                    attention_bias=False, tie_word_embeddings=True, hidden_size=56, pad_token_id=0), 1),
    "olmo2": (base("olmo2", "Olmo2ForCausalLM", num_attention_heads=2, num_key_value_heads=1, attention_bias=False,
                   rms_norm_eps=1e-06, rope_theta=500000.0, rope_scaling=None, pad_token_id=0), 1),
    "phi3": (base("phi3", "Phi3ForCausalLM", num_attention_heads=2, num_key_value_heads=2, sliding_window=63,
                  original_max_position_embeddings=128, rope_scaling=None, attention_bias=False, pad_token_id=0), 1),
    "phi3_longrope": (phi_longrope(16, partial_rotary_factor=0.75, tie_word_embeddings=True), 1),
    "phi3_longrope_short": (phi_longrope(128), 1),
}


def randomize(model, seed):
    """Weights large enough that attention is far from uniform and every term of the formulas shows in the logits."""
    generator = torch.Generator().manual_seed(seed)
    gemma = model.config.model_type.startswith("gemma")
    for name, parameter in sorted(model.named_parameters()):
        noise = torch.randn(parameter.shape, generator=generator)
        if name.endswith("norm.weight") or "layernorm" in name:
            value = 0.2 * noise if gemma else 1.0 + 0.2 * noise
        elif name.endswith("bias"):
            value = 0.3 * noise
        elif "embed_tokens" in name:
            value = noise / parameter.shape[1] ** 0.5 if gemma else 0.5 * noise
        else:
            gain = 1.6 if any(part in name for part in ("q_proj", "k_proj", "qkv_proj")) else 1.1
            value = gain * noise / parameter.shape[1] ** 0.5
        parameter.data.copy_(value)


def save_weights(model, folder, dtype, shards):
    tied = model.config.tie_word_embeddings
    state = {k: v.to(dtype).contiguous() for k, v in model.state_dict().items() if not (tied and k == "lm_head.weight")}
    if shards == 1:
        save_file(state, folder / "model.safetensors", metadata={"format": "pt"})
        return
    names, weight_map = sorted(state), {}
    for i in range(shards):
        file = f"model-{i + 1:05d}-of-{shards:05d}.safetensors"
        part = {n: state[n] for n in names[i::shards]}
        save_file(part, folder / file, metadata={"format": "pt"})
        weight_map.update({n: file for n in part})
    total = sum(v.numel() * v.element_size() for v in state.values())
    index = {"metadata": {"total_size": total}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=1) + "\n")


def load(folder, dtype):
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, attn_implementation="eager")
    return model.eval()


@torch.no_grad()
def make(name, config, shards, root, seed):
    folder = root / name
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.iterdir():
        old.unlink()
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    parsed = transformers.AutoConfig.from_pretrained(folder)
    model = transformers.AutoModelForCausalLM.from_config(parsed, attn_implementation="eager", dtype=torch.float32)
    randomize(model, seed)
    save_weights(model, folder, STORE[config["torch_dtype"]], shards)
    saved = json.loads(model.config.to_json_string(use_diff=False))
    saved.pop("_name_or_path", None)
    (folder / "config.saved.json").write_text(json.dumps(saved, indent=2, sort_keys=True) + "\n")

    generator = torch.Generator().manual_seed(1000 + seed)
    lengths = LENGTHS_OF.get(name, LENGTHS)
    sequences = [torch.randint(0, VOCAB, (1, n), generator=generator) for n in lengths]
    golden = {"lengths": torch.tensor(lengths, dtype=torch.int32),
              "tokens": torch.cat(sequences, 1)[0].to(torch.int32)}
    model = load(folder, torch.float32)
    golden["logits_fp32"] = torch.cat([model(s).logits[0].float() for s in sequences]).contiguous()
    decoded, decode_logits = [], []
    for s in sequences:
        out, tokens, logits = model(s, use_cache=True), [], []
        for _ in range(DECODE_STEPS):
            last = out.logits[0, -1].float()
            logits.append(last)
            tokens.append(int(last.argmax()))
            out = model(torch.tensor([[tokens[-1]]]), past_key_values=out.past_key_values, use_cache=True)
        decoded.append(tokens)
        decode_logits.append(torch.stack(logits))
    golden["decode_tokens"] = torch.tensor(decoded, dtype=torch.int32)
    golden["decode_logits_fp32"] = torch.stack(decode_logits).contiguous()
    half = load(folder, torch.bfloat16)
    golden["logits_bf16"] = torch.cat([half(s).logits[0].float() for s in sequences]).contiguous()
    save_file(golden, folder / "golden.safetensors", metadata={
        "torch": torch.__version__, "transformers": transformers.__version__, "seed": str(seed)})
    spread = golden["logits_fp32"].std().item()
    error = (golden["logits_bf16"] - golden["logits_fp32"]).abs().max().item()
    print(f"{name}: logits' deviation {spread:.3f}, largest error of bf16 {error:.4f}", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=pathlib.Path,
                        default=pathlib.Path(__file__).resolve().parent / "models")
    parser.add_argument("--only", nargs="*", help="names of the models to make; default: all")
    parser.add_argument("--seed", type=int, default=0, help="added to each model's own; other weights, other prompts")
    args = parser.parse_args()
    torch.set_num_threads(1)
    for seed, (name, (config, shards)) in enumerate(CASES.items()):
        if not args.only or name in args.only:
            make(name, config, shards, args.out, args.seed + seed)


if __name__ == "__main__":
    main()
