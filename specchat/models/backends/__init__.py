"""Other models: any transformers network, a scripted one, a small model at a large one's cost."""
