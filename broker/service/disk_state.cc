#include "broker/service/disk_state.h"

#include <algorithm>
#include <system_error>

namespace weft::broker {

namespace fs = std::filesystem;

namespace {
constexpr Duration kEvery = std::chrono::seconds(5);
constexpr int kShare = 50;  // looking takes one part of so many of the time
constexpr int64_t kLow = int64_t{2} << 30, kLowShare = 20;
}  // namespace

bool DiskWatch::begin_look(Instant now) {
  if (is_looking_ || now < next_) return false;
  return is_looking_ = true;
}

std::string DiskWatch::end_look(Instant now, Instant began, const DiskState& disk) {
  is_looking_ = false;
  next_ = now + std::max<Duration>(kEvery, kShare * (now - began));
  fresh_ = disk;
  const bool is_low = disk.size.value > 0 && disk.free.value < std::min(disk.size.value / kLowShare, kLow);
  if (std::exchange(is_low_, is_low) == is_low || !is_low) return {};
  return "warning disk_nearly_full free_bytes=" + std::to_string(disk.free.value) +
         " blob_bytes=" + std::to_string(disk.blobs.value) +
         " advice=\"make room, or let what ended jobs left go: --keep 7d\"";
}

// Without what a blob's file takes beside its bytes. What vanishes meanwhile counts as nothing.
DiskState look_at_disk(const fs::path& data_dir) {
  DiskState state;
  std::error_code code;
  for (fs::recursive_directory_iterator at(data_dir / "blobs", code), end; !code && at != end;
       at.increment(code)) {
    std::error_code gone;
    const auto size = at->is_regular_file(gone) ? at->file_size(gone) : 0;
    if (!gone) state.blobs.value += static_cast<int64_t>(size);
  }
  const fs::space_info space = fs::space(data_dir, code);
  if (code) return state;
  state.free.value = static_cast<int64_t>(space.available);
  state.size.value = static_cast<int64_t>(space.capacity);
  return state;
}

}  // namespace weft::broker
