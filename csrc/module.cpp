// The extension module of one instruction set: threads, facts, and every kernel file's functions.
//
// Tensors arrive as addresses (integers), sizes and strides counted in elements; nothing here
// knows PyTorch. A kernel file offers `void bind_xxx(nb::module_&)` and is listed below.

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "common/parallel.h"
#include "common/simd.h"

namespace nb = nanobind;

namespace {

std::vector<int> bound_cores;

nb::dict info() {
  nb::dict facts;
  facts["isa"] = HOTSHOE_ISA;
  facts["float_lanes"] = hotshoe::VL;
  facts["threads"] = hotshoe::num_threads();
  facts["cores"] = bound_cores;
  return facts;
}

void set_threads(int n, const std::vector<int>& cores) {
  {
    nb::gil_scoped_release unlocked;
    hotshoe::set_threads(n, cores);
  }
  bound_cores = cores;
}

}  // namespace

namespace hotshoe {
void bind_attention(nb::module_&);
void bind_communicator(nb::module_&);
void bind_linear(nb::module_&);
void bind_lora(nb::module_&);
void bind_memory(nb::module_&);
void bind_moe(nb::module_&);
void bind_record(nb::module_&);
void bind_activation(nb::module_&);
void bind_compress(nb::module_&);
void bind_embedding(nb::module_&);
void bind_gated_delta(nb::module_&);
void bind_hyper_connection(nb::module_&);
void bind_norm(nb::module_&);
void bind_rg_lru(nb::module_&);
void bind_rotary(nb::module_&);
void bind_sampling(nb::module_&);
void bind_indexer(nb::module_&);
void bind_latent_attention(nb::module_&);
void bind_selective_scan(nb::module_&);
void bind_state_space(nb::module_&);
}  // namespace hotshoe

NB_MODULE(HOTSHOE_MODULE, m) {
  m.def("info", &info,
        "Say what is loaded: isa, float_lanes (floats in one vector), threads, cores.");
  m.def("set_threads", &set_threads, nb::arg("n"), nb::arg("cores") = std::vector<int>{},
        "Set the number of threads, the caller included, and the core of each (cores[i] for\n"
        "thread i; empty leaves them unbound; the caller's own thread is never bound).\n"
        "One thread until called. Waits for a kernel that runs.\n\n"
        "Raises:\n    ValueError: n < 1, or as many cores as threads were not given.\n"
        "    RuntimeError: The system starts no more threads; nothing has changed.");
  hotshoe::bind_attention(m);
  hotshoe::bind_linear(m);
#ifndef HOTSHOE_AMX_EMULATED  // which is built of some folders alone
  hotshoe::bind_communicator(m);
  hotshoe::bind_lora(m);
  hotshoe::bind_memory(m);
  hotshoe::bind_moe(m);
  hotshoe::bind_record(m);
  hotshoe::bind_activation(m);
  hotshoe::bind_compress(m);
  hotshoe::bind_embedding(m);
  hotshoe::bind_gated_delta(m);
  hotshoe::bind_hyper_connection(m);
  hotshoe::bind_norm(m);
  hotshoe::bind_rg_lru(m);
  hotshoe::bind_rotary(m);
  hotshoe::bind_sampling(m);
  hotshoe::bind_indexer(m);
  hotshoe::bind_latent_attention(m);
  hotshoe::bind_selective_scan(m);
  hotshoe::bind_state_space(m);
#endif
}
