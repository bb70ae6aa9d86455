// Tells who sits before the machine, by notify-send where that is there: it is started, not waited for, and
// nothing depends on it.
#pragma once

#include <memory>
#include <string>

namespace weft::cli {

class Notifier {
 public:
  Notifier();
  void operator()(const std::string& title, const std::string& text) const;

 private:
  struct Started;
  std::shared_ptr<Started> started_;  // a copy is the same notifier
};

}  // namespace weft::cli
