// What the page asks of a broker, and the models that it can try. Both wait, and are asked from one thread
// each; interrupt() ends a wait from any other, and every later one.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "base/result.h"
#include "proto/messages.h"
#include "web/service.h"

namespace weft::ui {

struct BrokerName {
  std::string address;   // as people type it
  std::string software;  // its version
  bool is_admin = false;
};

class BrokerView {
 public:
  virtual ~BrokerView() = default;
  virtual std::string address() const = 0;
  // Connected, where it was not. Errors of this and of what follows: Unavailable and Timeout while the broker
  // is away, Cancelled after interrupt(), and what the broker refused with.
  virtual Result<BrokerName> connect() = 0;
  virtual void disconnect() = 0;  // nobody looks for a while

  virtual Result<proto::JobList> jobs(uint32_t count) = 0;  // the newest first
  virtual Result<proto::JobStatus> job(proto::JobNumber job) = 0;
  virtual Status events(proto::JobNumber job, uint64_t from_sequence,
                        const std::function<void(const proto::JobEvent&)>& take) = 0;
  virtual Result<proto::PeerList> peers() = 0;
  virtual Result<proto::LinkList> links() = 0;
  virtual Status stop(proto::JobNumber job) = 0;
  virtual Status resume(proto::JobNumber job) = 0;

  virtual void interrupt() = 0;
};

class ModelView {
 public:
  virtual ~ModelView() = default;
  virtual Result<std::vector<std::string>> models() = 0;
  // `on_text` is told each piece; false: nobody wants more of it.
  virtual Status generate(const web::GenerateRequest& request,
                          const std::function<bool(const std::string& text)>& on_text) = 0;
  virtual void interrupt() = 0;
};

}  // namespace weft::ui
