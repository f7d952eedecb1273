#include "trampolines.h"

#include "attributes.h"
#include "calls.h"

#define TRAMPOLINE_BYTES 16

extern HIDDEN const char hook_trampolines[];

#if defined(__x86_64__)
#define TRAMPOLINE "endbr64\n movl $number, %ecx\n jmp hook_call\n"
#elif defined(__aarch64__)
#define TRAMPOLINE "hint #34\n mov w3, #number\n b hook_call\n" /* hint #34 is `bti c` */
#else
#error "tracemap's hook knows x86-64 and AArch64 only"
#endif

__asm__(".pushsection .text\n"
        ".balign 16\n"
        ".hidden hook_trampolines\n"
        ".globl hook_trampolines\n"
        ".type hook_trampolines, %function\n"
        "hook_trampolines:\n"
        ".set number, 0\n"
        ".rept 16384\n" TRAMPOLINE ".balign 16\n"
        ".set number, number + 1\n"
        ".endr\n"
        ".size hook_trampolines, . - hook_trampolines\n"
        ".popsection\n");

_Static_assert(SLOTS == 16384, "the assembly above makes one entry per slot");

export_function trampoline(uint32_t slot) {
  return (export_function)(uintptr_t)(hook_trampolines + (size_t)slot * TRAMPOLINE_BYTES);
}

bool is_trampoline(export_function function) {
  uintptr_t address = (uintptr_t)function, begin = (uintptr_t)hook_trampolines;
  return address >= begin && address < begin + (size_t)SLOTS * TRAMPOLINE_BYTES;
}
