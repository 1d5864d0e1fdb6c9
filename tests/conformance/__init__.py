"""Cases of FlashInfer's own tests, run through fovea.flashinfer; runner.py is the command."""
