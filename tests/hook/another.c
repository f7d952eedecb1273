/* A library of somebody else's that is preloaded: into the file that ANOTHER_LOG names it writes whether the hook
 * records in the program that loads it, too.
 */
#include <stdio.h>
#include <stdlib.h>

__attribute__((constructor)) static void begin(void) {
  const char *log = getenv("ANOTHER_LOG");
  FILE *file = log ? fopen(log, "a") : NULL;
  if (!file) return;
  fprintf(file, "%s\n", getenv("TRACEMAP_HOOK_OUTPUT") ? "recorded" : "plain");
  fclose(file);
}
