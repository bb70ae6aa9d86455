// The broker's door for those who ask: the OpenAI API over HTTP, answered by the models of jobs that serve.
// The core tells which there are and where (ServedView), gates bring what entries tell, and by TellPeer
// requests go to them.
//
// Threads: `http` of web/server.h; `door`, on which requests are kept and answers become text; one that reads
// tokenizers; one that writes streams to the disk (kept_requests.h); and the tokenizing one of each model.
#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <string>

#include "base/result.h"
#include "broker/service/remote_requests.h"
#include "broker/service/served.h"
#include "web/server.h"

namespace weft::broker {

struct DoorOptions {
  // Whoever can be reached by others has a certificate.
  web::ServerOptions server{};
  // Who may ask. Nothing: nobody but who `is_open` lets.
  CheckCaller check{};
  // Asked where it listens on loopback: whether everybody on this machine may ask, whatever token is shown,
  // as of a broker that has made no caller's token. Nothing: no.
  std::function<bool()> is_open{};
  std::function<void(const std::string& line)> log{};
  RemoteOptions remote{};
  // Where streams are kept for a broker after this one; empty: nowhere.
  std::filesystem::path requests{};
};

// It outlives those who tell it things.
class Door final : public ServedView {
 public:
  // Errors: InvalidArgument for an address that others reach without a certificate; else Server::start()'s.
  static Result<std::unique_ptr<Door>> start(DoorOptions options, TellPeer tell);
  ~Door() override;  // stops at once

  net::Endpoint endpoint() const;  // as bound
  void on_served(const ServedJob& job) override;
  void on_withdrawn(proto::JobNumber job) override;
  void on_progress(const PeerId& from, const proto::ServeProgress& progress) override;

  // No new requests; answers that are under way may end within the deadline.
  void stop(Duration deadline);

 private:
  struct Parts;
  explicit Door(std::unique_ptr<Parts> parts);
  const std::unique_ptr<Parts> parts_;
};

}  // namespace weft::broker
