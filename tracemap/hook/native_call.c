#include "system.h"

/* Calls of functions with the C interface of MLIR: pointers and integers, and at most eight floating-point numbers,
 * which need no place on the stack. Such numbers are in registers of their own, so only the order among them matters
 * (System V ABI for x86-64, section 3.2.3; AAPCS64, section 6.8.2).
 *
 * The times are read here, next to the call. A call from C also keeps callgrind's record of calls right, which loses
 * track where libffi moves the stack pointer. */

#define MOST_INTEGERS 32u
#define MOST_REALS 8u

typedef uint64_t word;
typedef void function(word, word, word, word, word, word, word, word, word, word, word, word, word, word, word, word,
                      word, word, word, word, word, word, word, word, word, word, word, word, word, word, word, word,
                      double, double, double, double, double, double, double, double);

struct native_call {
  function *called;
  word integers[MOST_INTEGERS]; /* further ones are ignored by the function */
  double reals[MOST_REALS];     /* of a single-precision number, the first half is used */
};

/* Begin and end by CLOCK_MONOTONIC. */
PUBLIC void tracemap_hook_call_native(const struct native_call *call, uint64_t times_ns[2]) {
  const word *i = call->integers;
  const double *r = call->reals;
  times_ns[0] = monotonic_ns();
  call->called(i[0], i[1], i[2], i[3], i[4], i[5], i[6], i[7], i[8], i[9], i[10], i[11], i[12], i[13], i[14], i[15],
               i[16], i[17], i[18], i[19], i[20], i[21], i[22], i[23], i[24], i[25], i[26], i[27], i[28], i[29], i[30],
               i[31], r[0], r[1], r[2], r[3], r[4], r[5], r[6], r[7]);
  times_ns[1] = monotonic_ns();
}
