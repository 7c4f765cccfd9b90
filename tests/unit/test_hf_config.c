/* Tests the config.json of Hugging Face models: defaults, reading and writing, and the messages for refused
 * configs. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "daemon/spec/hf_config.h"

static struct transformer read_good(const char *text)
{
    struct transformer t;
    struct err err = {0};

    memset(&t, 0xff, sizeof t);
    if (hf_config_parse(text, strlen(text), "d/config.json", &t, &err) < 0)
        fail_msg("%s: %s: %s", text, err.path, err.msg);
    return t;
}

static void check_same(const struct transformer *a, const struct transformer *b)
{
    assert_int_equal(a->arch, b->arch);
    assert_int_equal(a->layers, b->layers);
    assert_int_equal(a->width, b->width);
    assert_int_equal(a->heads, b->heads);
    assert_int_equal(a->kv_heads, b->kv_heads);
    assert_int_equal(a->hidden, b->hidden);
    assert_int_equal(a->vocab, b->vocab);
    assert_int_equal(a->positions, b->positions);
    assert_int_equal(a->act, b->act);
    assert_int_equal(a->tied, b->tied);
    assert_true(a->eps == b->eps && a->rope_theta == b->rope_theta && a->init_std == b->init_std);
    assert_true(a->embd_dropout == b->embd_dropout && a->attn_dropout == b->attn_dropout &&
                a->resid_dropout == b->resid_dropout);
}

/* ------------------------------------------------------------------------------------------ reading */

static void test_gpt2_has_the_defaults_of_transformers(void **state)
{
    const struct transformer want = {.arch = ARCH_GPT2,
                                     .layers = 12,
                                     .width = 768,
                                     .heads = 12,
                                     .kv_heads = 12,
                                     .hidden = 3072,
                                     .vocab = 50257,
                                     .positions = 1024,
                                     .act = ACT_GELU,
                                     .tied = true,
                                     .eps = 1e-5f,
                                     .embd_dropout = 0.1f,
                                     .attn_dropout = 0.1f,
                                     .resid_dropout = 0.1f,
                                     .init_std = 0.02f};
    struct transformer t = read_good("{\"model_type\": \"gpt2\"}");

    (void)state;
    check_same(&t, &want);
    t = read_good(
        "{\"architectures\": [\"GPT2LMHeadModel\"], \"n_inner\": null, \"tie_word_embeddings\": null}");
    check_same(&t, &want);
    t = read_good(
        "{\"architectures\": [\"GPT2Model\"], \"n_ctx\": 7, \"task_specific_params\": {\"x\": [1, 2]}}");
    check_same(&t, &want);
}

static void test_llama_has_the_defaults_of_transformers(void **state)
{
    const struct transformer want = {.arch = ARCH_LLAMA,
                                     .layers = 32,
                                     .width = 4096,
                                     .heads = 32,
                                     .kv_heads = 32,
                                     .hidden = 11008,
                                     .vocab = 32000,
                                     .positions = 2048,
                                     .eps = 1e-6f,
                                     .rope_theta = 10000,
                                     .init_std = 0.02f};
    struct transformer t = read_good("{\"model_type\": \"llama\"}");

    (void)state;
    check_same(&t, &want);
    t = read_good(
        "{\"architectures\": [\"LlamaForCausalLM\"], \"num_key_value_heads\": null, \"head_dim\": 128, "
        "\"rope_scaling\": null, \"rope_parameters\": null, \"pretraining_tp\": 1}");
    check_same(&t, &want);
}

static void test_every_key_is_read(void **state)
{
    const struct transformer gpt2 = {.arch = ARCH_GPT2,
                                     .layers = 3,
                                     .width = 20,
                                     .heads = 5,
                                     .kv_heads = 5,
                                     .hidden = 33,
                                     .vocab = 77,
                                     .positions = 9,
                                     .act = ACT_GELU_ERF,
                                     .eps = 0.5f,
                                     .embd_dropout = 0.25f,
                                     .attn_dropout = 0.5f,
                                     .resid_dropout = 0.75f,
                                     .init_std = 0.125f};
    const struct transformer llama = {.arch = ARCH_LLAMA,
                                      .layers = 3,
                                      .width = 24,
                                      .heads = 6,
                                      .kv_heads = 2,
                                      .hidden = 33,
                                      .vocab = 77,
                                      .positions = 9,
                                      .tied = true,
                                      .eps = 0.5f,
                                      .attn_dropout = 0.5f,
                                      .rope_theta = 500000,
                                      .init_std = 0.125f};
    struct transformer t;

    (void)state;
    t = read_good(
        "{\"model_type\":\"gpt2\",\"n_layer\":3,\"n_embd\":20,\"n_head\":5,\"n_inner\":33,\"vocab_size\":77,"
        "\"n_positions\":9,\"activation_function\":\"gelu\",\"layer_norm_epsilon\":0.5,\"embd_pdrop\":0.25,"
        "\"attn_pdrop\":0.5,\"resid_pdrop\":0.75,\"initializer_range\":0.125,\"tie_word_embeddings\":false,"
        "\"scale_attn_weights\":true,\"reorder_and_upcast_attn\":true,\"torch_dtype\":\"bfloat16\"}");
    check_same(&t, &gpt2);
    t = read_good(
        "{\"model_type\":\"gpt2\",\"num_hidden_layers\":3,\"hidden_size\":20,\"num_attention_heads\":5,"
        "\"n_inner\":33,\"vocab_size\":77,\"max_position_embeddings\":9,\"n_positions\":9,"
        "\"activation_function\":\"gelu\",\"layer_norm_epsilon\":0.5,\"embd_pdrop\":0.25,\"attn_pdrop\":0.5,"
        "\"resid_pdrop\":0.75,\"initializer_range\":0.125,\"tie_word_embeddings\":false}");
    check_same(&t, &gpt2);
    t = read_good(
        "{\"model_type\":\"llama\",\"num_hidden_layers\":3,\"hidden_size\":24,\"num_attention_heads\":6,"
        "\"num_key_value_heads\":2,\"intermediate_size\":33,\"vocab_size\":77,\"max_position_embeddings\":9,"
        "\"rms_norm_eps\":0.5,\"rope_theta\":500000.0,\"attention_dropout\":0.5,\"initializer_range\":0.125,"
        "\"tie_word_embeddings\":true,\"hidden_act\":\"silu\",\"head_dim\":4,\"eos_token_id\":[1,2]}");
    check_same(&t, &llama);
}

static void test_activations_by_any_of_their_names(void **state)
{
    static const struct {
        const char *name;
        enum act act;
    } cases[] = {{"gelu_new", ACT_GELU},  {"gelu_pytorch_tanh", ACT_GELU},
                 {"gelu_fast", ACT_GELU}, {"gelu", ACT_GELU_ERF},
                 {"relu", ACT_RELU},      {"tanh", ACT_TANH},
                 {"silu", ACT_SILU},      {"swish", ACT_SILU},
                 {"linear", ACT_NONE}};

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char text[128];
        snprintf(text, sizeof text, "{\"model_type\":\"gpt2\",\"activation_function\":\"%s\"}",
                 cases[i].name);
        assert_int_equal(read_good(text).act, cases[i].act);
    }
}

static void test_rope_theta_at_the_top_or_inside(void **state)
{
    (void)state;
    assert_true(read_good("{\"model_type\":\"llama\",\"rope_theta\":5e5}").rope_theta == 5e5f);
    assert_true(read_good("{\"model_type\":\"llama\",\"rope_parameters\":{\"rope_type\":\"default\","
                          "\"rope_theta\":5e5}}")
                    .rope_theta == 5e5f);
    assert_true(read_good("{\"model_type\":\"llama\",\"rope_theta\":5e5,\"rope_parameters\":{\"rope_type\":"
                          "\"default\",\"rope_theta\":5e5,\"partial_rotary_factor\":1.0}}")
                    .rope_theta == 5e5f);
    assert_true(read_good("{\"model_type\":\"llama\",\"rope_scaling\":{\"type\":\"default\"}}").rope_theta ==
                1e4f);
    assert_true(read_good("{\"model_type\":\"llama\",\"rope_parameters\":{\"rope_theta\":7}}").rope_theta ==
                7);
}

/* ------------------------------------------------------------------------------------------ refusing */

static const struct {
    const char *text;
    int code;
    const char *part;
} refused[] = {
    {"", -EINVAL, "the document is empty"},
    {"[]", -EINVAL, "expected an object"},
    {"{}", -EINVAL, "model_type: missing"},
    {"{\"model_type\":3}", -EINVAL, "model_type: expected a string"},
    {"{\"model_type\":\"mistral\"}", -EOPNOTSUPP,
     "model_type: found \"mistral\"; the supported models are GPT-2"},
    {"{\"architectures\":[\"BertModel\"]}", -EOPNOTSUPP, "architectures: found [\"BertModel\"]"},
    {"{\"architectures\":[3]}", -EINVAL, "model_type: missing"},
    {"{\"model_type\":\"gpt2\",\"model_type\":\"gpt2\"}", -EINVAL, "duplicate key"},
    {"{\"model_type\":\"gpt2\",\"n_layer\":0}", -EINVAL, "n_layer: found 0; it must be from 1 to 10000"},
    {"{\"model_type\":\"gpt2\",\"n_layer\":10001}", -EINVAL, "n_layer: found 10001"},
    {"{\"model_type\":\"gpt2\",\"n_layer\":1.5}", -EINVAL, "n_layer: must be a whole number"},
    {"{\"model_type\":\"gpt2\",\"n_layer\":-1}", -EINVAL, "n_layer: must be a whole number"},
    {"{\"model_type\":\"gpt2\",\"n_layer\":\"12\"}", -EINVAL, "n_layer: expected a number"},
    {"{\"model_type\":\"gpt2\",\"n_layer\":12,\"num_hidden_layers\":13}", -EINVAL,
     "num_hidden_layers: found 13; its other"},
    {"{\"model_type\":\"gpt2\",\"vocab_size\":4294967297}", -EINVAL, "vocab_size: found 4294967297"},
    {"{\"model_type\":\"gpt2\",\"n_embd\":1073741820,\"n_head\":1}", -EINVAL, "too wide"},
    {"{\"model_type\":\"gpt2\",\"n_embd\":10,\"n_head\":3}", -EINVAL, "heads"},
    {"{\"model_type\":\"gpt2\",\"resid_pdrop\":1.0}", -EINVAL,
     "resid_pdrop: found 1; it must be at least 0 and less than 1"},
    {"{\"model_type\":\"gpt2\",\"resid_pdrop\":0.9999999999}", -EINVAL, "resid_pdrop"},
    {"{\"model_type\":\"gpt2\",\"embd_pdrop\":-0.1}", -EINVAL, "embd_pdrop: found -0.1"},
    {"{\"model_type\":\"gpt2\",\"layer_norm_epsilon\":\"1e-5\"}", -EINVAL,
     "layer_norm_epsilon: expected a number"},
    {"{\"model_type\":\"gpt2\",\"initializer_range\":0}", -EINVAL, "initializer_range: found 0"},
    {"{\"model_type\":\"gpt2\",\"tie_word_embeddings\":1}", -EINVAL, "tie_word_embeddings: expected"},
    {"{\"model_type\":\"gpt2\",\"activation_function\":\"quick_gelu\"}", -EOPNOTSUPP,
     "activation_function: found \"quick_gelu\""},
    {"{\"model_type\":\"gpt2\",\"scale_attn_weights\":false}", -EOPNOTSUPP,
     "scale_attn_weights: found false"},
    {"{\"model_type\":\"gpt2\",\"scale_attn_by_inverse_layer_idx\":true}", -EOPNOTSUPP,
     "scale_attn_by_inverse_layer_idx: found true"},
    {"{\"model_type\":\"gpt2\",\"add_cross_attention\":true}", -EOPNOTSUPP,
     "add_cross_attention: found true"},
    {"{\"model_type\":\"gpt2\",\"pruned_heads\":{\"0\":[1]}}", -EOPNOTSUPP,
     "pruned_heads: found {\"0\":[1]}"},
    {"{\"model_type\":\"llama\",\"quantization_config\":{\"bits\":4}}", -EOPNOTSUPP,
     "quantization_config: found {\"bits\":4}"},
    {"{\"model_type\":\"llama\",\"attention_bias\":true}", -EOPNOTSUPP, "attention_bias: found true"},
    {"{\"model_type\":\"llama\",\"mlp_bias\":true}", -EOPNOTSUPP, "mlp_bias: found true"},
    {"{\"model_type\":\"llama\",\"hidden_act\":\"gelu\"}", -EOPNOTSUPP, "hidden_act: found \"gelu\""},
    {"{\"model_type\":\"llama\",\"head_dim\":64}", -EOPNOTSUPP, "head_dim: found 64"},
    {"{\"model_type\":\"llama\",\"pretraining_tp\":2}", -EOPNOTSUPP, "pretraining_tp: found 2"},
    {"{\"model_type\":\"llama\",\"num_attention_heads\":6,\"hidden_size\":24,\"num_key_value_heads\":4}",
     -EINVAL, "heads"},
    {"{\"model_type\":\"llama\",\"num_attention_heads\":48,\"hidden_size\":24,\"head_dim\":1}", -EINVAL,
     "heads"},
    {"{\"model_type\":\"llama\",\"rope_scaling\":{\"rope_type\":\"llama3\",\"factor\":8.0}}", -EOPNOTSUPP,
     "rope_scaling: found {\"rope_type\":\"llama3\""},
    {"{\"model_type\":\"llama\",\"rope_scaling\":{\"type\":\"linear\",\"factor\":2.0}}", -EOPNOTSUPP,
     "rope_scaling: found"},
    {"{\"model_type\":\"llama\",\"rope_scaling\":{\"factor\":2.0}}", -EOPNOTSUPP, "rope_scaling: found"},
    {"{\"model_type\":\"llama\",\"rope_scaling\":{\"type\":3}}", -EOPNOTSUPP, "rope_scaling: found"},
    {"{\"model_type\":\"llama\",\"rope_scaling\":3}", -EINVAL, "rope_scaling: found 3; expected an object"},
    {"{\"model_type\":\"llama\",\"rope_parameters\":{\"rope_type\":\"yarn\"}}", -EOPNOTSUPP,
     "rope_parameters: found"},
    {"{\"model_type\":\"llama\",\"rope_parameters\":{\"partial_rotary_factor\":0.5}}", -EOPNOTSUPP,
     "a part of each head"},
    {"{\"model_type\":\"llama\",\"rope_parameters\":{\"rope_theta\":0}}", -EINVAL,
     "rope_parameters.rope_theta: found 0"},
    {"{\"model_type\":\"llama\",\"rope_theta\":1e4,\"rope_parameters\":{\"rope_theta\":2e4}}", -EINVAL,
     "another value"},
    {"{\"model_type\":\"llama\",\"rope_theta\":1e300}", -EINVAL, "rope_theta: found 1e+300"},
};

static void test_what_is_refused_is_named(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof refused / sizeof refused[0]; i++) {
        struct transformer t;
        struct err err = {0};
        char text[2048];
        int r = hf_config_parse(refused[i].text, strlen(refused[i].text), "d/config.json", &t, &err);
        if (r != refused[i].code || !strstr(err_text(&err, text, sizeof text), refused[i].part))
            fail_msg("%s: expected %d \"%s\", found %d: %s", refused[i].text, refused[i].code,
                     refused[i].part, r, text);
        assert_int_equal(hf_config_parse(refused[i].text, strlen(refused[i].text), "x", &t, NULL), r);
    }
}

static void test_a_config_inside_a_document_is_named_by_its_path(void **state)
{
    static const char text[] = "{\"model_type\":\"llama\",\"mlp_bias\":true}";
    struct transformer t;
    struct json *doc;
    struct err err;

    (void)state;
    assert_int_equal(json_parse(text, sizeof text - 1, "job", false, &doc, NULL), 0);
    assert_int_equal(hf_config_read(doc, "model.config", &t, &err), -EOPNOTSUPP);
    assert_string_equal(err.path, "model.config.mlp_bias");
    json_free(doc);
}

/* ------------------------------------------------------------------------------------------ writing */

static void test_what_is_written_reads_back(void **state)
{
    static const float floats[] = {0.02f,      1e-5f,           1e-6f,       0.1f,
                                   0.3333333f, 1.17549435e-38f, 0.99999994f, 3.0517578e-05f};

    (void)state;
    for (int arch = 0; arch < ARCH_COUNT; arch++) {
        for (int act = 0; act < ACT_COUNT; act++) {
            for (size_t i = 0; i < sizeof floats / sizeof floats[0]; i++) {
                bool gpt2 = arch == ARCH_GPT2;
                struct transformer t = {.arch = (enum transformer_arch)arch,
                                        .layers = 7,
                                        .width = 48,
                                        .heads = 12,
                                        .kv_heads = gpt2 ? 12 : 4,
                                        .hidden = 100,
                                        .vocab = i % 2 ? 96 : 50304,
                                        .positions = 11,
                                        .act = gpt2 ? (enum act)act : ACT_NONE,
                                        .tied = i % 2 == 0,
                                        .eps = floats[i],
                                        .rope_theta = gpt2 ? 0 : 1e6f + floats[i],
                                        .embd_dropout = gpt2 ? floats[i] : 0,
                                        .attn_dropout = floats[i],
                                        .resid_dropout = 0,
                                        .init_std = i == 5 ? 0.02f : floats[i]};
                struct strbuf b = {0};
                hf_config_write(&t, DTYPE_F32, &b);
                struct transformer back = read_good(b.at);
                check_same(&t, &back);
                strbuf_finish(&b);
            }
        }
    }
}

static void test_written_numbers_are_the_short_ones(void **state)
{
    const struct transformer t = {.arch = ARCH_LLAMA,
                                  .layers = 1,
                                  .width = 4,
                                  .heads = 2,
                                  .kv_heads = 1,
                                  .hidden = 6,
                                  .vocab = 5,
                                  .positions = 3,
                                  .eps = 1e-5f,
                                  .rope_theta = 10000,
                                  .init_std = 0.02f};
    struct strbuf b = {0};

    (void)state;
    hf_config_write(&t, DTYPE_F32, &b);
    assert_non_null(strstr(b.at, "\"architectures\": [\"LlamaForCausalLM\"]"));
    assert_non_null(strstr(b.at, "\"rms_norm_eps\": 1e-05,"));
    assert_non_null(strstr(b.at, "\"initializer_range\": 0.02,"));
    assert_non_null(strstr(b.at, "\"rope_theta\": 10000.0,"));
    assert_non_null(strstr(b.at, "\"attention_dropout\": 0.0,"));
    assert_non_null(strstr(b.at, "\"num_key_value_heads\": 1,"));
    strbuf_finish(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_gpt2_has_the_defaults_of_transformers),
        cmocka_unit_test(test_llama_has_the_defaults_of_transformers),
        cmocka_unit_test(test_every_key_is_read),
        cmocka_unit_test(test_activations_by_any_of_their_names),
        cmocka_unit_test(test_rope_theta_at_the_top_or_inside),
        cmocka_unit_test(test_what_is_refused_is_named),
        cmocka_unit_test(test_a_config_inside_a_document_is_named_by_its_path),
        cmocka_unit_test(test_what_is_written_reads_back),
        cmocka_unit_test(test_written_numbers_are_the_short_ones),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
