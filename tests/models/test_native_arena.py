"""The memory that layers in C compute in grows by pieces."""

from specchat.models.cpu_kernels.packing import Arena


def test_an_arena_has_room_for_what_does_not_fit_into_one_piece():
    arena = Arena()
    kept = [arena.room(30 << 20).fill_(value) for value in (1, 2, 3)]
    assert len(arena.room(80 << 20)) == 80 << 20, "more than a whole piece"
    assert [int(tensor[0]) for tensor in kept] == [int(tensor[-1]) for tensor in kept] == [1, 2, 3]
