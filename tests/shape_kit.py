"""Tiny random models of the architectures that the embedded server computes beside Qwen2."""

import json

OTHERS = {
    "llama": {
        "head_dim": 16,
        "tie_word_embeddings": False,
        "rope_parameters": {
            "rope_type": "llama3", "rope_theta": 1e4, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
            "original_max_position_embeddings": 64,
        },
    },
    "llama-biased": {"tie_word_embeddings": True, "attention_bias": True, "num_key_value_heads": 4},
    "qwen3": {"head_dim": 24, "tie_word_embeddings": False, "rope_parameters": {"rope_theta": 1e6}},
}  # fmt: skip
"""By name, what config.json says of each beyond its sizes. llama3's scaling is so strong that prompts show it."""


def make_shape(folder, name, language):
    """A random model of one of `OTHERS` in `folder`, with tokenizer, chat template and end token of another model."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    kept = json.loads((language / "config.json").read_text())
    sizes = {
        "vocab_size": kept["vocab_size"], "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 2048, "initializer_range": 0.3,
        "eos_token_id": kept["eos_token_id"], "bos_token_id": None, "pad_token_id": None,
    }  # fmt: skip
    torch.manual_seed(0)
    config = AutoConfig.for_model(name.partition("-")[0], **sizes | OTHERS[name])
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    with torch.no_grad():
        for value in model.parameters():
            if value.dim() == 1:  # Norms, which would all be 1, and biases, which would be 0.
                value.add_(0.1 * torch.randn_like(value))
    model.save_pretrained(folder)
    for file in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        (folder / file).write_bytes((language / file).read_bytes())
    return folder
