/** The MCP servers of a run's tools, as the record names them. Anyone may have made the record. */

interface IRecordedServer {
  inside?: unknown;
  url?: unknown;
  tools?: unknown;
}

/** The server of a tool. */
export interface IToolServer {
  name: string;
  /** True if the server runs in the sandbox. */
  inside: boolean;
  /** Host of a web service; '' for a program. */
  host: string;
}

/** Return the server of a tool; null for a tool of another kind. */
export function serverOf(settings: Record<string, unknown>, tool: string): IToolServer | null {
  const servers = Object.entries((settings.mcp ?? {}) as Record<string, IRecordedServer | null>);
  for (const [name, server] of servers) {
    const tools = server && Array.isArray(server.tools) ? (server.tools as unknown[]) : [];
    if (server && tools.some(one => (one as { name?: unknown } | null)?.name === tool)) {
      const address = typeof server.url === 'string' ? /^https?:\/\/([^/?#\s]{1,200})/.exec(server.url) : null;
      return { name, inside: server.inside === true, host: address?.[1] ?? '' };
    }
  }
  return null;
}

/**
 * Return the server of a tool and its place, in words; '' for other tools, and for a replay, which calls no server.
 * Twin of `tool_places`.
 */
export function placeOf(settings: Record<string, unknown>, tool: string): string {
  const server = 'replay_of' in settings || 'rebuilt_from' in settings ? null : serverOf(settings, tool);
  if (!server) {
    return '';
  }
  const place = server.host ? `at ${server.host}` : server.inside ? 'in the sandbox' : 'on the host';
  return `server ${server.name} ${place}`;
}
