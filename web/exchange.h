// One request's answer, between the threads that write it and the loop that sends it: framed bytes, counted
// until they have left. Internal to web/.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <string>

#include "base/mutex.h"
#include "web/message.h"
#include "web/server.h"

namespace weft::web {

// Bytes that wait in all responses of a server.
struct UnsentTotal {
  std::atomic<size_t> bytes = 0;
};

class Exchange {
 public:
  struct Terms {
    bool is_head = false;  // HEAD: no body is sent
    bool is_http_1_0 = false;
    bool keeps_alive = false;  // what the client hears of the connection
    size_t unsent_max = 0, unsent_fair = 0, unsent_all_max = 0;
  };
  // `wake` is called by any thread when there is something for the loop; once, until take().
  Exchange(const Terms& terms, std::shared_ptr<UnsentTotal> total, std::function<void()> wake);
  ~Exchange();
  Exchange(const Exchange&) = delete;
  Exchange& operator=(const Exchange&) = delete;

  // As in Responder.
  void send(const Response& response);
  void start_stream();
  bool write(std::string_view events);
  void finish();
  void on_gone(std::function<void()> work);
  bool is_gone() const;
  void abandon();  // nobody will write any more

  // The loop's. What was written since.
  struct Output {
    std::string bytes;
    bool is_finished = false;
    bool is_cut = false;  // nothing more comes, and it is not the end
    bool is_stream = false;
  };
  Output take();
  void left(size_t bytes);  // of those that take() gave
  void gone();              // the client has gone: on_gone is called, if it did not end before

 private:
  enum class Phase : uint8_t { Begun, Streaming, Finished };

  bool is_over(size_t more) const WEFT_REQUIRES(mutex_);
  void append(std::string_view bytes) WEFT_REQUIRES(mutex_);
  void append_chunk(std::string_view bytes) WEFT_REQUIRES(mutex_);
  bool takes_wake() WEFT_REQUIRES(mutex_);
  void end(std::function<void()>& released) WEFT_REQUIRES(mutex_);

  const Terms terms_;
  const std::shared_ptr<UnsentTotal> total_;
  const std::function<void()> wake_;

  mutable Mutex mutex_;
  Phase phase_ WEFT_GUARDED_BY(mutex_) = Phase::Begun;
  std::string pending_ WEFT_GUARDED_BY(mutex_);
  size_t unsent_ WEFT_GUARDED_BY(mutex_) = 0;
  bool is_woken_ WEFT_GUARDED_BY(mutex_) = false;
  bool is_gone_ WEFT_GUARDED_BY(mutex_) = false;
  bool is_too_slow_ WEFT_GUARDED_BY(mutex_) = false;
  bool is_cut_ WEFT_GUARDED_BY(mutex_) = false;
  bool is_stream_ WEFT_GUARDED_BY(mutex_) = false;
  std::function<void()> on_gone_ WEFT_GUARDED_BY(mutex_);
};

// The head of a response, and its body unless the request was HEAD.
std::string render_response(const Response& response, bool keeps_alive, bool is_head);

}  // namespace weft::web
