// A connection to the broker for one question or a few.
#pragma once

#include <memory>

#include "base/result.h"
#include "cli/client.h"
#include "cli/signals.h"

namespace weft::cli {

// A connection, with Ctrl-C ending every wait on it.
class BrokerCall {
 public:
  static Result<std::unique_ptr<BrokerCall>> open(const BrokerOptions& options) {
    WEFT_TRY(auto access, BrokerAccess::open(options));
    return open(std::move(access));
  }
  static Result<std::unique_ptr<BrokerCall>> open(std::unique_ptr<BrokerAccess> broker) {
    std::unique_ptr<BrokerCall> session(new BrokerCall(std::move(broker)));
    WEFT_TRY(session->signals_,
             SignalWatch::start(session->access->loop(),
                                [access = session->access.get()](int) { access->set_interrupted(); }));
    WEFT_TRY(session->client, session->access->connect());
    return session;
  }

  std::unique_ptr<BrokerAccess> access;
  std::unique_ptr<Client> client;

 private:
  explicit BrokerCall(std::unique_ptr<BrokerAccess> broker) : access(std::move(broker)) {}
  SignalsBlocked blocked_;
  std::unique_ptr<SignalWatch> signals_;
};

}  // namespace weft::cli
