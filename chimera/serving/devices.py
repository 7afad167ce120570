"""The GPUs of this machine."""


def gpus() -> list[str]:
    """Names of the GPUs that torch can use."""
    import torch

    if not torch.cuda.is_available():
        return []
    return [torch.cuda.get_device_name(number) for number in range(torch.cuda.device_count())]
