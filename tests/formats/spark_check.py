"""Compares what Spark reads of Parquet files with what DuckDB reads: every value of small files, and figures of the columns
of larger ones.

    spark_check.py SPARK FOLDER FILE...      the folders of the packages pyspark, and duckdb

Prints the versions, and a line for each file.
"""

import math
import os
import sys
from collections import Counter

spark_packages, packages, *files = sys.argv[1:]
sys.path[:0] = [packages, spark_packages]
# the processes that Spark starts
os.environ["PYTHONPATH"] = spark_packages

import duckdb
from pyspark.sql import SparkSession

# rows
SMALL = 10_000
TOGETHER = 30
# of a column of each type
FIGURES = {
    "BIGINT": ("sum({0})", "min({0})", "max({0})"),
    "DOUBLE": ("sum({0})", "min({0})", "max({0})"),
    "BOOLEAN": ("sum(CASE WHEN {0} THEN 1 ELSE 0 END)",),
    "VARCHAR": ("min({0})", "max({0})", "sum(length({0}))"),
}
# with a zone: a number is the same in any
TIME = "TIMESTAMP WITH TIME ZONE"


def plain(value):
    """Structs and lists of either library."""
    if hasattr(value, "asDict"):
        return plain(value.asDict())
    if isinstance(value, dict):
        return {name: plain(part) for name, part in value.items()}
    return [plain(part) for part in value] if isinstance(value, list) else value


def is_same(a, b):
    return math.isclose(a, b, rel_tol=1e-12) if isinstance(a, float) and isinstance(b, float) else a == b


def figures(columns, file):
    """What is compared of all rows. Most columns have no values at all."""
    counts = duckdb.sql(f"SELECT {', '.join(f'count({quoted(name)})' for name, _ in columns)} FROM '{file}'").fetchall()[0]
    for (name, kind), count in zip(columns, counts):
        more = FIGURES.get(kind, ()) if count else ()
        yield from (of.format(f"`{name}`") for of in ("count({0})", *more))


def differences(spark, file):
    theirs = duckdb.sql(f"FROM '{file}'")
    columns = [(name, str(kind)) for name, kind in zip(theirs.columns, theirs.types)]
    ours = spark.read.parquet(file)
    if ours.columns != theirs.columns:
        yield f"columns {ours.columns}"
        return
    ours.createOrReplaceTempView("trace")
    if duckdb.sql(f"SELECT count(*) FROM '{file}'").fetchall()[0][0] > SMALL:
        queries = list(figures(columns, file))
        # of more at once Spark makes no code
        for some in (queries[at : at + TOGETHER] for at in range(0, len(queries), TOGETHER)):
            found = spark.sql(f"SELECT {', '.join(some)} FROM trace").collect()[0]
            wanted = duckdb.sql(f"SELECT {', '.join(some).replace('`', chr(34))} FROM '{file}'").fetchall()[0]
            for query, a, b in zip(some, found, wanted, strict=True):
                if not is_same(a, b):
                    yield f"{query} is {a!r}, with DuckDB {b!r}"
        return
    in_spark, in_duckdb = (", ".join(map(of, columns)) for of in (spark_column, duckdb_column))
    rows = spark.sql(f"SELECT {in_spark} FROM trace").collect()
    wanted = duckdb.sql(f"SELECT {in_duckdb} FROM '{file}'").fetchall()
    found, wanted = (Counter(repr([plain(value) for value in row]) for row in table) for table in (rows, wanted))
    yield from (f"only Spark has the row {row}" for row in found - wanted)
    yield from (f"only DuckDB has the row {row}" for row in wanted - found)


def quoted(name):
    return f'"{name}"'


def spark_column(column):
    name, kind = column
    return f"unix_micros(`{name}`)" if kind == TIME else f"`{name}`"


def duckdb_column(column):
    name, kind = column
    return f"epoch_us({quoted(name)})" if kind == TIME else quoted(name)


wrong = False
builder = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
spark = builder.config("spark.sql.session.timeZone", "UTC").config("spark.log.level", "ERROR").getOrCreate()
print(f"Spark {spark.version}, DuckDB {duckdb.__version__}")
for file in files:
    # it has two readers for Parquet
    for vectorized in ("true", "false"):
        spark.conf.set("spark.sql.parquet.enableVectorizedReader", vectorized)
        found = list(differences(spark, os.path.abspath(file)))
        wrong |= bool(found)
        for difference in found[:10]:
            print(f"WRONG {os.path.basename(file)}: {difference[:1000]}")
    print(f"{os.path.basename(file)}: {spark.read.parquet(os.path.abspath(file)).count():,} rows")
spark.stop()
sys.exit(1 if wrong else 0)
