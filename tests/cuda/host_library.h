// What the libraries do on a HostDevice: products and convolutions as plain loops, sources through the host's
// compiler.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "peer/backend/cuda/device.h"

namespace weft::test {

struct HostLibraryOp final : peer::cuda::LibraryOp {
  std::function<void(const std::byte* first, const std::byte* second, const std::byte* bias,
                     std::byte* result)>
      work;
  Bytes workspace{512};  // it is overwritten before each run, to see that nobody keeps anything there
  std::string name;
  Bytes workspace_bytes() const override { return workspace; }
  std::string implementation() const override { return name; }
};

std::shared_ptr<peer::cuda::LibraryOp> host_product(const peer::cuda::ProductSpec& spec);
// Errors: Unsupported for uneven padding, as cuDNN.
Result<std::shared_ptr<peer::cuda::LibraryOp>> host_convolution(const peer::cuda::ConvolutionSpec& spec);

// Compiles the sources as one file with g++ and loads it, or finds it among those compiled before. Any
// thread.
Result<std::vector<const peer::cuda::Entry*>> compile_for_shim(
    std::span<const peer::cuda::KernelSource> sources);

}  // namespace weft::test
