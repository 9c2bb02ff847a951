// Included before the C++ of a wheel: names that an old system has for what it calls, so that the
// wheel installs wherever torch's own does. The newer ones only set errno less often.
#pragma once
#include <new>

__asm__(".symver exp,exp@GLIBC_2.2.5");
__asm__(".symver log,log@GLIBC_2.2.5");
__asm__(".symver pow,pow@GLIBC_2.2.5");

// std::vector of GCC 11 calls it, the library of GCC 8 lacks it
namespace std {
void __throw_bad_array_new_length() { throw bad_array_new_length(); }
}  // namespace std
