// From sources to code for one kind of GPU, by NVRTC, which needs no GPU. What the sources include comes from
// memory: the files of kernels/ as they were when this was built.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "peer/backend/cuda/device.h"

namespace weft::peer::cuda {

// The sources as one program, for `architecture` ("sm_86"): its kernels are found by their names. Names are
// distinct. Errors: Internal, with what the compiler said; Unsupported for an architecture that it does not
// know.
Result<std::vector<char>> compile_to_cubin(std::span<const KernelSource> sources,
                                           const std::string& architecture);

// A file of kernels/, by the name it is included by. Both end with a zero.
struct EmbeddedFile {
  const char* name;
  const char* text;
};
std::span<const EmbeddedFile> embedded_files();  // of a file that is generated: embed_sources.cmake

}  // namespace weft::peer::cuda
