"""A claim that meets a session at work looks further on, not through all its steps.

Each of many workers met the session with the oldest steps, locked by one of them, and
read all of its ready steps to come to the next session; and that was locked as well.
With sixteen at work that was most of what Postgres did.
"""

from importlib import import_module

from django.db import migrations

one_call = import_module("runs_app.migrations.0014_one_call")

CHANGES = [
    (
        """    v_busy uuid[] := '{}';
""",
        """    v_busy uuid[] := '{}';
    v_crowded uuid;  -- a session to be left to others
    v_is_met boolean;  -- a session was held by another
    v_is_apart boolean;  -- one look further on is enough
    v_end bigint;
    v_back bigint;  -- set: what comes after this place was left out
""",
    ),
    (
        """        v_busy := v_sessions[v_at - 1:v_at - 1];
""",
        """        v_crowded := v_sessions[v_at - 1];
""",
    ),
    (
        """        IF v_found = 0 THEN
            IF v_is_crowded AND claimed IS NULL THEN
                v_is_crowded := false;
""",
        """        IF v_found = 0 THEN
            IF v_back IS NOT NULL THEN
                v_place := v_back;
                v_back := NULL;
                CONTINUE;
            ELSIF v_is_crowded AND claimed IS NULL THEN
                v_is_crowded := false;
                v_crowded := NULL;
""",
    ),
    (
        """        ELSIF v_found > 1 THEN
            v_last := v_ready[v_found];
""",
        """        ELSIF v_found > 1 OR v_back IS NOT NULL THEN
            IF v_back IS NOT NULL THEN
                -- Of the next rank is nothing to be had, while there may be of this.
                v_ready := ARRAY(SELECT q FROM unnest(v_ready) q WHERE q.rank = v_rank
                                  ORDER BY q.id);
                v_found := cardinality(v_ready);
                IF v_found = 0 THEN
                    v_place := v_back;
                    v_back := NULL;
                    CONTINUE;
                END IF;
            END IF;
            v_last := v_ready[v_found];
""",
    ),
    (
        """            CONTINUE WHEN c.session_id = ANY (v_busy);
""",
        """            IF c.session_id = ANY (v_busy || v_crowded) THEN
                IF c.session_id = v_crowded THEN
                    v_busy := v_busy || v_crowded;
                    v_is_met := true;
                END IF;
                CONTINUE;
            END IF;
""",
    ),
    (
        """                    v_busy := v_busy || c.session_id;
                    -- Go on where""",
        """                    v_busy := v_busy || c.session_id;
                    v_is_met := true;
                    -- Go on where""",
    ),
    (
        """            v_rank := c.rank;
            v_place := c.id;
        END IF;
    END LOOP;
""",
        """            v_rank := c.rank;
            v_place := c.id;
        END IF;
        IF v_is_met AND v_is_apart IS NULL AND p_run IS NULL
           AND v_stay_rank IS NULL THEN
            -- What comes next is mostly more of the same session, and after that what
            -- others have met as well: go on at any place of the same rank, if it is
            -- far to its end. But not always, since what is older waits.
            v_is_apart := true;
            SELECT x.id INTO v_end FROM agent_ready_steps x
             WHERE x.project_id = p_project AND x.rank = v_rank
             ORDER BY x.rank DESC, x.id DESC LIMIT 1;
            IF v_end - v_place > 100 AND random() < 0.9 THEN
                v_back := v_place;
                v_place := v_place + (random() * (v_end - v_place))::bigint;
            END IF;
        END IF;
    END LOOP;
""",
    ),
]


def changed(sql: str, *changes: tuple[str, str]) -> str:
    """The SQL with each of the changes made at the one place that it is for."""
    for was, becomes in changes:
        assert sql.count(was) == 1, was
        sql = sql.replace(was, becomes)
    return sql


BEFORE = one_call.TURN.replace("CREATE FUNCTION", "CREATE OR REPLACE FUNCTION")
AFTER = changed(BEFORE, *CHANGES)


class Migration(migrations.Migration):
    dependencies = [("runs_app", "0015_erased_meanwhile")]

    operations = [migrations.RunSQL(AFTER, BEFORE)]
