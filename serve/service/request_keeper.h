// Where a TextService writes down the answers that outlive it: streams, and what is asked under a key, so
// that another process can open them again, under the same names, after this one was lost.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "serve/engine.h"
#include "serve/service/once.h"
#include "web/service.h"

namespace weft::serve {

// All that the text of a stream, and the names of its events, hang on.
struct KeptRequest {
  std::string id;  // of the answer
  int64_t created = 0;
  web::ApiKind kind = web::ApiKind::Completion;
  bool includes_usage = false;
  std::vector<std::string> stops;
  uint64_t number = 0;  // by which the source of tokens knows it
  Request request;      // with its seed, and tokens_max of 0 or more
  Once once{};
};

// Any thread; nothing here waits.
class RequestKeeper {
 public:
  virtual ~RequestKeeper() = default;
  // `done` is called once, on any thread: it is on the disk, or will not be. Neither keeps the request from
  // being served.
  virtual void keep(KeptRequest request, std::function<void()> done) = 0;
  virtual void ended(const std::string& id) = 0;
};

}  // namespace weft::serve
