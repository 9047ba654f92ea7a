import jax
import jax.numpy as jnp
import numpy as np

from perdure.rl.ops import reservoirs


def filled(key, capacity, chunk, chunks):
    """The numbers of the rows that are kept of `chunk * chunks`, offered `chunk` at a time."""

    def step(store, number):
        seen = number * chunk
        places = reservoirs.places(jax.random.fold_in(key, number), seen, chunk, capacity)
        return reservoirs.written(store, seen + jnp.arange(chunk), places), places

    return jax.lax.scan(step, jnp.full(capacity, -1), jnp.arange(chunks))


def test_rows_fill_the_store_in_order_while_there_is_room():
    store, places = jax.jit(filled, static_argnums=(1, 2, 3))(jax.random.key(0), 10, 3, 3)
    np.testing.assert_array_equal(store, [*range(9), -1])
    np.testing.assert_array_equal(places.ravel(), range(9))


def test_every_row_of_the_stream_is_kept_equally_often():
    # 8 of 32 rows, 4,000 times: each is kept with probability 1/4, spread sqrt(3 / 16 / 4000) = .0068.
    runs = jax.jit(jax.vmap(lambda key: filled(key, 8, 4, 8)[0]))(jax.random.split(jax.random.key(1), 4_000))
    kept = np.bincount(np.asarray(runs).ravel(), minlength=32) / 4_000
    assert np.abs(kept - 0.25).max() < 4 * 0.0068
    assert all(len(set(row)) == 8 for row in np.asarray(runs).tolist())


def test_of_several_rows_for_one_place_the_last_has_it():
    # One place and rows 1, 2, 3: row n is kept with probability 1 / (n + 1), and undoes those before it.
    keys = jax.random.split(jax.random.key(2), 4_000)
    places = np.asarray(jax.jit(jax.vmap(lambda key: reservoirs.places(key, jnp.int32(1), 3, 1)))(keys))
    assert ((places == 0).sum(1) <= 1).all()
    np.testing.assert_allclose((places == 0).mean(0), [0.25, 0.25, 0.25], atol=0.03)
