// A peer in this process, on a loop and thread of its own, with a device of the test's choice.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "cli/commands.h"
#include "peer/service/peer_service.h"
#include "security/token.h"

namespace weft::cli {

class PeerHere {
 public:
  using MakeBackend = std::function<std::unique_ptr<peer::Backend>()>;

  PeerHere(const net::Endpoint& broker, const security::Token& token, const std::string& name,
           const MakeBackend& make_backend,
           std::vector<dag::Arithmetic> arithmetic = {dag::Arithmetic::F32}) {
    const auto like = make_backend();
    peer::PeerServiceOptions options;
    options.broker = broker;
    options.broker_key = token.broker;
    options.identity = identity_.get();
    options.hello.role = proto::Role::Peer;
    options.hello.name = name;
    options.hello.token = proto::TokenProof{token.id, token.secret.bytes};
    options.hello.device = {.device = "test",
                            .rates = {},
                            .memory = Bytes{int64_t{1} << 30},
                            .fingerprint = like->numerics_fingerprint(),
                            .traits = like->traits(),
                            .arithmetic = std::move(arithmetic)};
    options.listen = net::Endpoint{"127.0.0.1", 0};
    options.make_backend = make_backend;
    options.log = [](const std::string&) {};
    service_ = std::make_unique<peer::PeerService>(loop_, std::move(options));
    thread_ = std::thread([this] { left_ = service_->run(); });
  }
  ~PeerHere() {
    service_->stop();
    if (thread_.joinable()) thread_.join();
  }
  void stop() { service_->stop(); }
  // Until it has left by itself or was stopped, and why.
  Status wait() {
    thread_.join();
    return left_;
  }

 private:
  std::unique_ptr<security::Identity> identity_ = *security::Identity::generate();
  net::Loop loop_;
  Status left_;
  std::unique_ptr<peer::PeerService> service_;
  std::thread thread_;
};

// One of the commands that run jobs, as from a shell.
inline Result<int> weft(const std::vector<std::string>& arguments) {
  Program program("");
  Command chosen;
  add_local(program.line(), chosen);
  add_submit(program.line(), chosen);
  program.parse(arguments);
  return chosen();
}

}  // namespace weft::cli
