"""One program that checks and measures specchat on a machine with a GPU: `python -m tools.gpu`.

It needs torch, transformers, numpy and safetensors and none of the app's packages, since machines with large cards
often have nothing else and no way to fetch it. On a processor it runs at a small size, which tests everything but the
figures.
"""
