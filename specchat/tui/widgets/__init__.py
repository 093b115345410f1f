"""Parts of the screen; each draws itself and posts what happened to it."""
