// A peer as its owner runs it: `weft join` in a process of its own.
#pragma once

#include <sys/types.h>

#include <filesystem>
#include <string>
#include <vector>

#include "base/units.h"

namespace weft::attacks {

class PeerProcess {
 public:
  // Its folder, log and control socket lie in `folder`.
  PeerProcess(std::filesystem::path folder, const std::string& broker, const std::string& token,
              const std::vector<std::string>& options);
  ~PeerProcess();  // SIGKILL, where it still runs
  PeerProcess(const PeerProcess&) = delete;
  PeerProcess& operator=(const PeerProcess&) = delete;

  void signal(int number) const;
  // Whether it ended within that time; then its exit status, 1000 and more for a signal.
  bool ends_within(Duration time);
  int exit_status() const { return exit_status_; }
  bool is_alive();

  Bytes memory() const;  // resident
  Bytes memory_peak() const;
  void reset_peak() const;
  std::string log_text() const;

 private:
  std::string status_field(const std::string& name) const;
  const std::filesystem::path folder_;
  pid_t process_ = -1;
  bool has_ended_ = false;
  int exit_status_ = -1;
};

}  // namespace weft::attacks
