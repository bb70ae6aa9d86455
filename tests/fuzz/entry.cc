// libFuzzer's entry for one target, WEFT_FUZZ_TARGET.
#include <cstdint>

#include "tests/fuzz/targets.h"

// Little is kept of what was freed: memory counts against the limit that a run is given.
extern "C" const char* __asan_default_options();
const char* __asan_default_options() {
  return "quarantine_size_mb=16:strict_init_order=1:detect_stack_use_after_return=0";
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  weft::fuzz::WEFT_FUZZ_TARGET(std::as_bytes(std::span(data, size)));
  return 0;
}
