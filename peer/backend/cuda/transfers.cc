#include "peer/backend/cuda/transfers.h"

#include <cstring>

#include "peer/backend/kernel.h"

namespace weft::peer::cuda {

namespace {

constexpr int64_t kAlignment = 256;
constexpr Bytes kPinnedKept{int64_t{512} << 20};

class DeviceDownload final : public Download {
 public:
  DeviceDownload(std::shared_ptr<Device> device, std::shared_ptr<Event> over, dag::Tensor tensor)
      : device_(std::move(device)), over_(std::move(over)), tensor_(std::move(tensor)) {}
  // The copy under way writes to the tensor's memory, which must not be another's before that.
  ~DeviceDownload() override {
    if (!taken_) (void)device_->wait_for(*over_);
  }
  Result<dag::Tensor> take() override {
    const Status there = device_->wait_for(*over_);
    taken_ = true;
    if (!there) return fail(there.error());
    return std::move(tensor_);
  }

 private:
  std::shared_ptr<Device> device_;
  std::shared_ptr<Event> over_;
  dag::Tensor tensor_;
  bool taken_ = false;
};

}  // namespace

// ---- StagingRing ----

Status StagingRing::open(Bytes size) {
  size_ = size.value;
  WEFT_TRY(memory_, device_.allocate(size));
  return {};
}

Result<std::byte*> StagingRing::take(Bytes size) {
  const int64_t bytes = align_up(std::max<int64_t>(size.value, 1), kAlignment);
  if (head_ + bytes > size_) head_ = 0;
  const int64_t begin = head_, end = head_ + bytes;
  // The oldest pieces go first, those beyond the head: what overlaps is among them, and what stands before it
  // is older still.
  const auto overlaps = [&](const Piece& piece) { return piece.begin < end && begin < piece.end; };
  size_t last = 0;
  for (size_t i = 0; i < pieces_.size(); ++i)
    if (overlaps(pieces_[i])) last = i + 1;
  if (last > 0 && pieces_[last - 1].emptied)  // not there where a copy could not be submitted
    WEFT_TRY_STATUS(device_.wait_in(filler_, *pieces_[last - 1].emptied));
  pieces_.erase(pieces_.begin(), pieces_.begin() + static_cast<ptrdiff_t>(last));
  pieces_.push_back({begin, end, nullptr});
  head_ = end;
  return memory_ + begin;
}

void StagingRing::give(std::shared_ptr<Event> emptied) { pieces_.back().emptied = std::move(emptied); }

// ---- Transfers ----

Transfers::Transfers(std::shared_ptr<Device> device, const Options& options)
    : device_(std::move(device)),
      options_(options),
      pinned_(std::make_shared<PinnedPool>(device_, kPinnedKept)),
      in_(*device_, Stream::CopyIn),
      out_(*device_, Stream::Compute) {}

Status Transfers::open() {
  WEFT_TRY_STATUS(in_.open(options_.staging));
  return out_.open(options_.staging);
}

Result<std::shared_ptr<Event>> Transfers::then(Stream stream, Stream other) {
  WEFT_TRY(std::shared_ptr<Event> event, device_->make_event(false));
  WEFT_TRY_STATUS(device_->record(*event, stream));
  if (stream != other) WEFT_TRY_STATUS(device_->wait_in(other, *event));
  return event;
}

Status Transfers::upload(const dag::Tensor& tensor, std::byte* to) {
  const Bytes size = tensor.spec().bytes();
  if (size.value == 0) return {};
  WEFT_TRY(auto pinned, pinned_->take(size));
  std::memcpy(pinned.get(), tensor.bytes().data(), static_cast<size_t>(size.value));
  std::shared_ptr<Event> over;
  if (in_.fits(size)) {
    WEFT_TRY(std::byte * staging, in_.take(size));
    WEFT_TRY_STATUS(device_->copy_in(Stream::CopyIn, pinned.get(), staging, size));
    WEFT_TRY(over, then(Stream::CopyIn, Stream::Compute));
    WEFT_TRY_STATUS(device_->copy_within(Stream::Compute, staging, to, size));
    WEFT_TRY(std::shared_ptr<Event> emptied, then(Stream::Compute, Stream::Compute));
    in_.give(std::move(emptied));
  } else {
    WEFT_TRY_STATUS(device_->copy_in(Stream::Compute, pinned.get(), to, size));
    WEFT_TRY(over, then(Stream::Compute, Stream::Compute));
  }
  return keep_until(std::move(over), std::move(pinned), size.value);
}

Status Transfers::keep_until(std::shared_ptr<Event> over, std::shared_ptr<std::byte[]> pinned,
                             int64_t bytes) {
  uploads_.push_back({std::move(over), std::move(pinned), bytes});
  upload_bytes_ += bytes;
  while (!uploads_.empty()) {
    const Upload& oldest = uploads_.front();
    WEFT_TRY(const bool is_over, device_->is_over(*oldest.over));
    if (!is_over) {
      if (upload_bytes_ <= options_.pinned_uploads.value) break;
      WEFT_TRY_STATUS(device_->wait_for(*oldest.over));
    }
    upload_bytes_ -= oldest.bytes;
    uploads_.pop_front();
  }
  return {};
}

Result<std::unique_ptr<Download>> Transfers::begin_download(const std::byte* from,
                                                            const dag::TensorSpec& spec) {
  const Bytes size = spec.bytes();
  WEFT_TRY(auto pinned, pinned_->take(size));
  std::shared_ptr<Event> over;
  if (out_.fits(size)) {
    WEFT_TRY(std::byte * staging, out_.take(size));
    WEFT_TRY_STATUS(device_->copy_within(Stream::Compute, from, staging, size));
    WEFT_TRY_STATUS(then(Stream::Compute, Stream::CopyOut));
    WEFT_TRY_STATUS(device_->copy_out(Stream::CopyOut, staging, pinned.get(), size));
    WEFT_TRY(over, then(Stream::CopyOut, Stream::CopyOut));
    out_.give(over);
  } else {
    WEFT_TRY_STATUS(device_->copy_out(Stream::Compute, from, pinned.get(), size));
    WEFT_TRY(over, then(Stream::Compute, Stream::Compute));
  }
  return std::make_unique<DeviceDownload>(device_, std::move(over), dag::Tensor(spec, std::move(pinned)));
}

}  // namespace weft::peer::cuda
