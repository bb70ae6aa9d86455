#include "tests/storage/failing_disk.h"

#include <fstream>
#include <iterator>

namespace weft::test {
namespace {

namespace fs = std::filesystem;

std::optional<std::string> bytes_of(const fs::path& path) {
  std::error_code code;
  if (!fs::is_regular_file(path, code)) return std::nullopt;
  std::ifstream in(path, std::ios::binary);
  return std::string{std::istreambuf_iterator<char>(in), {}};
}

}  // namespace

const char* to_string(DiskFault fault) {
  switch (fault) {
    case DiskFault::Error:
      return "error";
    case DiskFault::Full:
      return "full";
    case DiskFault::Kill:
      return "kill";
    case DiskFault::PowerLoss:
      return "power loss";
  }
  return "";
}

storage::FaultHook FailingDisk::hook() {
  return [this](std::string_view operation, const fs::path& path) { return on_operation(operation, path); };
}

Status FailingDisk::on_operation(std::string_view operation, const fs::path& path) {
  const std::string what = path.string() + ": " + std::string(operation);
  if (is_dead_) return fail(ErrorCode::Unavailable, what + ": injected");
  complete();
  ++count_;
  const bool takes_room =
      operation == "open" || operation == "write" || operation == "make directory" || operation == "link";
  if (!struck_ && count_ >= at_ && (fault_ != DiskFault::Full || takes_room)) {
    struck_ = true;
    is_full_ = fault_ == DiskFault::Full;
    is_dead_ = fault_ == DiskFault::Kill || fault_ == DiskFault::PowerLoss;
    if (!is_full_) return fail(ErrorCode::Unavailable, what + ": injected");
  }
  if (is_full_ && takes_room)
    return fail(ErrorCode::ResourceExhausted, what + ": injected; make room on the disk");
  note(operation, path);
  return {};
}

// Before the operation is done: what it will change.
void FailingDisk::note(std::string_view operation, const fs::path& path) {
  last_operation_ = operation;
  last_path_ = path;
  if (operation == "open" || operation == "rename" || operation == "link" || operation == "remove")
    last_change_ = Pending{path, false, bytes_of(path)};
  if (operation == "make directory") last_change_ = Pending{path, true, std::nullopt};
  if (operation == "open") last_opened_ = path;
}

// The operation before this one is done.
void FailingDisk::complete() {
  if (last_change_) pending_.push_back(*std::exchange(last_change_, std::nullopt));
  if (last_operation_ == "open" || last_operation_ == "write") unsynced_.insert(last_path_);
  if (last_operation_ == "sync") unsynced_.erase(last_path_);
  if (last_operation_ == "rename" && unsynced_.erase(last_opened_) > 0) unsynced_.insert(last_path_);
  if (last_operation_ == "sync directory")
    std::erase_if(pending_, [&](const Pending& one) { return one.path.parent_path() == last_path_; });
  last_operation_.clear();
}

void FailingDisk::lose_power(Rng& rng) {
  complete();
  const uint64_t share = rng.below(5);  // sometimes all of it is lost, sometimes nothing, mostly a part
  const auto stays = [&] { return rng.below(4) < share; };
  for (const fs::path& path : unsynced_) {
    std::error_code code;
    if (fs::is_regular_file(path, code) && !stays())
      fs::resize_file(path, rng.below(fs::file_size(path) + 1), code);
  }
  // Operations on one name come to the disk in their order.
  std::set<fs::path> kept;
  for (auto at = pending_.rbegin(); at != pending_.rend(); ++at) {
    if (kept.contains(at->path) || stays()) {
      kept.insert(at->path);
      continue;
    }
    std::error_code code;
    if (at->before && fs::is_directory(at->path.parent_path(), code)) {
      fs::remove(at->path, code);
      std::ofstream(at->path, std::ios::binary) << *at->before;
    } else if (!at->before) {
      fs::remove_all(at->path, code);
    }
  }
  pending_.clear();
  unsynced_.clear();
}

}  // namespace weft::test
