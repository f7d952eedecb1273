/* Where there is no libFuzzer: each file that is named is one case. */
#include <stdio.h>

#include "fuzz.h"

int main(int count, char **paths) {
  for (int place = 1; place < count; place++) {
    FILE *file = fopen(paths[place], "rb");
    if (!file) return 2;
    static uint8_t data[1 << 20];
    size_t size = fread(data, 1, sizeof data, file);
    fclose(file);
    fprintf(stderr, "case %s\n", paths[place]);
    LLVMFuzzerTestOneInput(data, size);
  }
  return 0;
}
