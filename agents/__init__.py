"""Chimera's society: roles, prompts, tools, nodes, routing and the graph.

This file must exist: AgentOps (through agentlightning 0.3.0) takes a top-level folder `agents` without it for another
package and drops its OpenAI instrumentation.
"""
