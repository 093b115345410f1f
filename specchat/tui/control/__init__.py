"""What the user causes: commands, keys, the prompt, the engine session, playback, races."""
