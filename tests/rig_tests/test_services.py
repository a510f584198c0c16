"""The private redis-server and PostgreSQL."""

import psycopg
import redis

from tests.rig import services


def test_redis_answers_while_its_context_lasts_and_is_gone_afterwards() -> None:
    with services.redis_server() as url:
        client = redis.Redis.from_url(url)
        assert client.ping()
        port = client.connection_pool.connection_kwargs["port"]
        client.close()
    assert not services._listens(port)


def test_postgres_gives_an_empty_database_and_is_gone_afterwards() -> None:
    with services.postgres_server() as url, psycopg.connect(url) as connection:
        tables = connection.execute("select count(*) from pg_tables where schemaname = 'public'").fetchone()
        assert tables == (0,)
        port = connection.info.port
    assert not services._listens(port)
