// What comes back from a device: values and times that are there when the device has got so far. Whoever
// holds one waits for it, on any thread; the thread that drives the device goes on meanwhile.
#pragma once

#include <memory>
#include <utility>

#include "base/result.h"
#include "base/units.h"
#include "dag/tensor.h"

namespace weft::peer {

// How the elements of a value become a payload. The place where compression comes in: what is encoded on the
// device need not cross its bus.
struct Encoding {
  enum class Kind : uint8_t {
    Dense,  // every element in order: a tensor of the value's spec
  };
  Kind kind = Kind::Dense;
  dag::DType floats = dag::DType::F32;  // what the elements of an F32 value become
  bool operator==(const Encoding&) const = default;
};

// A value on its way to the host, as it was when the download began: what is submitted later does not change
// it. It may be dropped without being taken, and may outlive its backend (take() then gives the tensor, or
// Cancelled).
class Download {
 public:
  virtual ~Download() = default;
  // Waits for the tensor; once. Any thread. The tensor may lie in memory that the backend lends, which goes
  // back with the last copy of it. Errors: of the device, also of work before the download.
  virtual Result<dag::Tensor> take() = 0;
};

// One that is there already.
class FinishedDownload final : public Download {
 public:
  explicit FinishedDownload(dag::Tensor tensor) : tensor_(std::move(tensor)) {}
  Result<dag::Tensor> take() override { return std::move(tensor_); }

 private:
  dag::Tensor tensor_;
};

// The device's time from one place in what is submitted to another.
class Timer {
 public:
  virtual ~Timer() = default;
  // The end: behind all that was submitted so far. Once, on the thread that drives the backend.
  virtual Status stop() = 0;
  // Waits for the end, after stop(). Any thread. What the device did for others meanwhile counts too.
  virtual Result<Duration> elapsed() = 0;
  // Whether elapsed() would not wait, after stop(): what was submitted before that is done, its downloads
  // too. Any thread; never waits.
  virtual bool is_over() const = 0;
};

}  // namespace weft::peer
