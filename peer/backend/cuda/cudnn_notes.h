// What an engine of cuDNN's says of its numbers and of what it stands on, and whether it may be taken.
#pragma once

#include <cudnn.h>

#include <string>
#include <string_view>

#include "base/result.h"
#include "peer/backend/cuda/cudnn_descriptor.h"
#include "peer/backend/cuda/library_ops.h"

namespace weft::peer::cuda {

struct EngineNotes {
  bool may_be_taken = true, tensor_cores = false, compiled_at_run_time = false;
  std::string words;  // " winograd tensor-cores"

  void add(std::string_view word, bool allowed) {
    words += " " + std::string(word);
    may_be_taken &= allowed;
  }
};

// `engine`: finalized. Errors are cuDNN's.
Result<EngineNotes> notes_of(const CudnnDescriptor& engine, Arithmetic arithmetic);

}  // namespace weft::peer::cuda
