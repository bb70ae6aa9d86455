// `weft broker` as a process of this test: on a free port, with its own folder, ended with the test.
#pragma once

#include <sys/types.h>

#include <filesystem>
#include <string>
#include <vector>

#include "base/units.h"
#include "net/endpoint.h"
#include "security/token.h"

namespace weft::attacks {

class BrokerProcess {
 public:
  // Starts it; a failure fails the test. The program is that of the environment's WEFT.
  explicit BrokerProcess(std::filesystem::path folder, std::vector<std::string> arguments = {});
  ~BrokerProcess();  // SIGKILL
  BrokerProcess(const BrokerProcess&) = delete;
  BrokerProcess& operator=(const BrokerProcess&) = delete;

  const net::Endpoint& endpoint() const { return endpoint_; }
  const security::Token& peer_token() const { return peer_token_; }
  const security::Token& submitter_token() const { return submitter_token_; }

  bool is_alive() const;
  Bytes memory() const;       // resident
  Bytes memory_peak() const;  // since start or the last reset_peak()
  void reset_peak();
  double cpu_seconds() const;
  const std::filesystem::path& folder() const { return folder_; }
  Bytes log_size() const;
  std::string log_text() const;

  // Ends it by SIGTERM, or SIGKILL after a minute, and starts it on the same folder and port.
  void restart();

 private:
  void start();
  void stop(int signal);
  std::string status_field(const std::string& name) const;

  std::filesystem::path folder_;
  std::vector<std::string> arguments_;
  net::Endpoint endpoint_{"127.0.0.1", 0};
  security::Token peer_token_, submitter_token_;
  pid_t process_ = -1;
  int output_ = -1;
};

}  // namespace weft::attacks
