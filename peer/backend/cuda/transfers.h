// Copies between host and device beside the kernels. An upload goes through pinned memory to staging memory
// on the device (copy-in stream), and from there to its place when the kernels before it are done; a download
// takes the same way back. So a copy waits for no kernel and no kernel for a bus, but for the little copy
// on the device. The thread that drives the backend, but for what a Download does.
#pragma once

#include <deque>
#include <memory>

#include "dag/tensor.h"
#include "peer/backend/cuda/device.h"
#include "peer/backend/cuda/pinned.h"
#include "peer/backend/download.h"

namespace weft::peer::cuda {

// A ring of device memory that one stream fills and another empties: a piece is the next one's when its event
// is over.
class StagingRing {
 public:
  StagingRing(Device& device, Stream filler) : device_(device), filler_(filler) {}
  ~StagingRing() {
    if (memory_ != nullptr) device_.deallocate(memory_);
  }
  StagingRing(const StagingRing&) = delete;
  StagingRing& operator=(const StagingRing&) = delete;
  Status open(Bytes size);

  bool fits(Bytes size) const { return size.value <= size_ / 2; }
  // Memory that the filler may write as soon as it gets there: it waits for whoever had it before.
  Result<std::byte*> take(Bytes size);
  // The piece that was taken last: to be called once it has been filled and emptied, as far as submitting
  // goes.
  void give(std::shared_ptr<Event> emptied);

 private:
  struct Piece {
    int64_t begin, end;
    std::shared_ptr<Event> emptied;
  };
  Device& device_;
  const Stream filler_;
  std::byte* memory_ = nullptr;
  int64_t size_ = 0, head_ = 0;
  std::deque<Piece> pieces_;  // oldest first
};

class Transfers {
 public:
  struct Options {
    Bytes staging;         // of each ring
    Bytes pinned_uploads;  // under way at once; beyond it upload() waits
  };
  Transfers(std::shared_ptr<Device> device, const Options& options);
  Status open();

  Status upload(const dag::Tensor& tensor, std::byte* to);
  Result<std::unique_ptr<Download>> begin_download(const std::byte* from, const dag::TensorSpec& spec);
  Result<std::shared_ptr<std::byte[]>> take_pinned(Bytes size) { return pinned_->take(size); }

 private:
  // From `stream`'s next place on the other stream sees what was submitted so far.
  Result<std::shared_ptr<Event>> then(Stream stream, Stream other);
  Status keep_until(std::shared_ptr<Event> over, std::shared_ptr<std::byte[]> pinned, int64_t bytes);

  std::shared_ptr<Device> device_;
  const Options options_;
  std::shared_ptr<PinnedPool> pinned_;
  StagingRing in_, out_;
  struct Upload {
    std::shared_ptr<Event> over;
    std::shared_ptr<std::byte[]> pinned;
    int64_t bytes;
  };
  std::deque<Upload> uploads_;  // oldest first
  int64_t upload_bytes_ = 0;
};

}  // namespace weft::peer::cuda
