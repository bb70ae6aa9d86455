#include "broker/service/remote_figures.h"

#include "serve/service/token_source.h"

namespace weft::broker {
namespace {

Metrics metrics_of_requests() {
  Metrics metrics;
  serve::declare_request_metrics(metrics);
  metrics.declare_counter("weft_serve_asked_again_total",
                          "Requests that were sent once more: to another entry, or for what was lost.");
  metrics.declare_counter("weft_serve_contradictions_total",
                          "Tokens that an entry told otherwise than before, or that cannot be.");
  metrics.declare_counter("weft_serve_strays_total",
                          "What peers told that are not the entry, or not of this plan.");
  metrics.declare_counter("weft_serve_guesses_total", "Tokens that were guessed and checked.");
  metrics.declare_counter("weft_serve_guesses_right_total", "Guesses that were drawn.");
  metrics.declare_gauge("weft_serve_placed", "1 while the model can answer.");
  metrics.declare_counter("weft_serve_passes_total", "Passes that have come round a ring.");
  metrics.declare_counter("weft_serve_rows_total", "Positions that were computed in these passes.");
  metrics.declare_gauge("weft_serve_passes_under_way", "Passes on their way round a ring.");
  metrics.declare_gauge("weft_serve_cache_positions", "Positions that caches of a ring are granted for.");
  metrics.declare_gauge("weft_serve_cache_positions_max", "Positions that a ring has memory for.");
  return metrics;
}

}  // namespace

RemoteFigures::RemoteFigures(const std::string& model)
    : labels_{{"model", model}}, metrics_(metrics_of_requests()) {}

void RemoteFigures::count_end(serve::Finish finish) {
  Labels labels = labels_;
  labels["finish"] = serve::to_string(finish);
  metrics_.add("weft_serve_requests_total", 1, labels);
}

void RemoteFigures::count_token(bool is_first, Duration since) {
  count("weft_serve_tokens_total");
  metrics_.observe(is_first ? "weft_serve_first_token_seconds" : "weft_serve_between_tokens_seconds",
                   seconds(since), labels_);
}

void RemoteFigures::count_progress(const proto::ServeProgress& progress) {
  if (progress.load) {
    count("weft_serve_passes_total", static_cast<double>(progress.load->passes));
    count("weft_serve_rows_total", static_cast<double>(progress.load->rows));
    load_ = *progress.load;
  }
  if (progress.guesses > 0) {
    count("weft_serve_guesses_total", static_cast<double>(progress.guesses));
    count("weft_serve_guesses_right_total", static_cast<double>(progress.guesses_right));
  }
}

Metrics RemoteFigures::metrics(const Now& now) const {
  Metrics metrics = metrics_;
  metrics.set("weft_serve_requests_serving", static_cast<double>(now.at_entry), labels_);
  metrics.set("weft_serve_requests_waiting", static_cast<double>(now.open - now.at_entry), labels_);
  metrics.set("weft_serve_placed", now.positions_max ? 1 : 0, labels_);
  metrics.set("weft_serve_cache_positions_max", static_cast<double>(now.positions_max.value_or(0)), labels_);
  // Of the last request that ends nobody tells what is let go behind it.
  const proto::ServeLoad load = now.at_entry == 0 ? proto::ServeLoad{} : load_;
  metrics.set("weft_serve_cache_positions", static_cast<double>(load.positions), labels_);
  metrics.set("weft_serve_passes_under_way", load.under_way, labels_);
  return metrics;
}

}  // namespace weft::broker
