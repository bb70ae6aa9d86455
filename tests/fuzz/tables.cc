#include "data/kinds.h"
#include "data/summary.h"
#include "tests/fuzz/files.h"
#include "tests/fuzz/samples_of.h"
#include "tests/fuzz/targets.h"

namespace weft::fuzz {

// As whoever says nothing would read it, as numbers, and as classes.
void tables(std::span<const std::byte> bytes) {
  const MemoryFile file(bytes);
  (void)data::as_data(data::kind_of(file.path()), file.path());
  const auto guessed = data::guess_spec(file.path());
  if (guessed) (void)data::yaml_of(*guessed);
  data::CsvSpec spec;
  spec.path = file.path();
  for (const bool has_classes : {false, true}) {
    spec.columns = {{.name = "a", .fields = {"a"}, .has_classes = has_classes}};
    const auto table = data::open_csv(spec, {.resident_max = 1 << 20});
    if (table) read_samples(**table);
  }
  if (!guessed) return;
  const auto dataset = data::open_dataset(*guessed, {.resident_max = 1 << 20});
  if (dataset) (void)data::summarise(**dataset);
}

}  // namespace weft::fuzz
