"""vLLM servers whose weights follow training: slots of `kind: vllm`. Read `publish` first, then `front`.

`sharing` says which slots share servers; `engine` is the command of a server; `weights` makes a folder that vLLM reads
whole; `replicas` sends calls to them; `publish` puts new weights behind them, which `probe` proves, or, by `adapters`,
LoRA adapters beside them; `front` is the one address that the run knows; `__main__` is the process of all this.
"""
