"""Words of the memory pages, for people who have never seen a table of ours."""

from django import template

register = template.Library()

PLACES = {
    "access_api_keys": "API keys",
    "access_audit": "entries of the audit log",
    "access_idempotency": "answers kept for retries",
    "access_saved_views": "kept views of lists",
    "agent_artifacts": "files",
    "agent_effects": "effects noted",
    "agent_events": "events of sessions",
    "agent_handoffs": "handoffs to other agents",
    "agent_memory": "facts",
    "agent_memory_embeddings": "embeddings of facts",
    "agent_memory_promotions": "readings of closed sessions",
    "agent_memory_revisions": "entries of facts' histories",
    "agent_memory_sources": "sources of facts",
    "agent_rejected_completions": "reports that came too late",
    "agent_runs": "runs",
    "agent_sessions": "sessions",
    "agent_sessions.state": "states of sessions",
    "agent_snapshots": "snapshots of sessions",
    "agent_step_attempts": "attempts of steps",
    "agent_steps": "steps",
    "agent_tool_calls": "tool calls",
    "working_memory": "values of working memory",
}


@register.filter
def place(name: str) -> str:
    """Where something was, in words; a place without any as its name in words."""
    return PLACES.get(name, name.removeprefix("agent_").replace("_", " "))
