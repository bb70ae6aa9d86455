// Internal to train: what a run tells before its first step.
#pragma once

#include <string>
#include <vector>

namespace weft::train {

struct Told {
  std::vector<std::string> warnings, notes;

  void add(const std::vector<std::string>& more_warnings, const std::vector<std::string>& more_notes) {
    warnings.insert(warnings.end(), more_warnings.begin(), more_warnings.end());
    notes.insert(notes.end(), more_notes.begin(), more_notes.end());
  }
};

}  // namespace weft::train
