// How much of its disk a broker's data takes.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <utility>

#include "broker/events.h"

namespace weft::broker {

// Reads the folder of blobs, which takes a while where there are many. What cannot be read counts as nothing.
DiskState look_at_disk(const std::filesystem::path& data_dir);

// When it is looked at again, and what the log is told of it. Pure.
class DiskWatch {
 public:
  bool begin_look(Instant now);  // false: not now
  // A line for the log; empty: nothing is new.
  std::string end_look(Instant now, Instant began, const DiskState& disk);
  std::optional<DiskState> take() { return std::exchange(fresh_, {}); }  // once each

 private:
  bool is_looking_ = false, is_low_ = false;
  Instant next_{};
  std::optional<DiskState> fresh_{};
};

}  // namespace weft::broker
