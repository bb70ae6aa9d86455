#include "broker/service/remote_request.h"

namespace weft::broker {

proto::ServeRequest RemoteRequest::message() const {
  const serve::SamplingOptions& sampling = request.sampling;
  proto::ServeRequest message{.request = number,
                              .tokens = tokens,
                              .tokens_max = static_cast<uint64_t>(tokens_max) - drawn(),
                              .temperature = sampling.temperature,
                              .top_p = sampling.top_p,
                              .top_k = static_cast<uint64_t>(sampling.top_k),
                              .seed = sampling.seed,
                              .ends = request.ends};
  if (sampling.alternatives >= 0) message.alternatives = static_cast<uint32_t>(sampling.alternatives);
  return message;
}

void RemoteRequest::lose_place() {
  if (is_at_entry) ++losses;
  if (spoilt_since) ++spoilt;
  spoilt_since.reset();
  is_at_entry = has_gap = false;
  not_before = {};
  tries = 0;
}

void RemoteRequest::renumber(uint64_t other) {
  number = other;
  is_at_entry = has_gap = false;
  gaps = 0;
}

void RemoteRequest::add_token(int64_t token) {
  tokens.push_back(token);
  has_gap = false;
  gaps = losses = 0;
}

}  // namespace weft::broker
