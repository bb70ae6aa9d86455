// The CUDA runtime, so far as peer/backend/cuda/cuda_device.cc calls it, without a GPU: what is submitted is
// done by a thread of its own, in the order of submission, and each call can be told to fail. For what the
// real device makes of the runtime's answers; what a GPU computes is seen elsewhere.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <string>
#include <vector>

namespace weft::test::fake {

// What stands for a function on the GPU: is called with its parameters, which were copied when it was
// launched.
struct Kernel {
  size_t parameter_bytes;
  void (*run)(const void* parameters);
};

struct Card {
  std::string name = "Fake GPU";
  int major = 8, minor = 6;
};
struct Machine {
  int driver = 13000;  // 0: none
  std::vector<Card> cards{{}};
  const Kernel* kernel_of_code = nullptr;  // each kernel that is asked of any code
};

// Begins anew. REQUIRES: nothing of an earlier machine is left.
void reset(Machine machine = {});
// The next call of `function` answers so; `sticky`: and every one after it, whatever its name.
void fail(const std::string& function, cudaError_t answer, bool sticky = false);
int calls(const std::string& function);
int alive();  // streams, events, blocks of memory, graphs and pieces of code not given back
unsigned last_event_flags();
std::vector<int> stream_priorities();
// Nothing submitted is done before let_go().
void hold();
void let_go();

}  // namespace weft::test::fake
