"""What this machine computes with: its GPUs, and whether its processor knows bfloat16."""


def gpus() -> list[str]:
    """Names of the GPUs that torch can use."""
    import torch

    if not torch.cuda.is_available():
        return []
    return [torch.cuda.get_device_name(number) for number in range(torch.cuda.device_count())]


def fast_bfloat16() -> bool:
    """Whether the processor multiplies bfloat16 itself: faster than float32 then, several times as slow otherwise."""
    import torch

    # torch 2.13 has no public name for either.
    return torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()
