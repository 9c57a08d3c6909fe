"""File names and layout, records, writers and tolerant readers: what the rooms share.

Import the module you need: `layout` and the writers need nothing but the standard library and msgspec (the hook uses
them in the training process), the readers and `columns` need numpy.
"""
